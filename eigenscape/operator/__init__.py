"""Linear operators without a network: five members, their algebra, dense matrices, knockouts."""

from eigenscape.operator.dense import Dense as Dense
from eigenscape.operator.knockout import projection_knockout as projection_knockout
from eigenscape.operator.knockout import subtraction_knockout as subtraction_knockout
from eigenscape.operator.linear_operator import LinearOperator as LinearOperator
from eigenscape.operator.linear_operator import Restricted as Restricted
from eigenscape.operator.linear_operator import Selection as Selection
from eigenscape.operator.linear_operator import WrappedOperator as WrappedOperator
from eigenscape.operator.linear_operator import require_operator as require_operator
from eigenscape.operator.linear_operator import require_square as require_square

__all__ = [
    "Dense",
    "LinearOperator",
    "projection_knockout",
    "subtraction_knockout",
]
