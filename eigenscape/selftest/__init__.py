"""Are derivatives those of the function itself? Callables in, a verdict out.

This room knows no models: it compares what automatic differentiation says along a line with
differences of what the function gives at points of that line.
"""

from eigenscape.selftest.differences import Difference as Difference
from eigenscape.selftest.differences import central_difference as central_difference
from eigenscape.selftest.moving import displaced as displaced
from eigenscape.selftest.verdict import compare as compare

__all__ = [
    "Difference",
    "central_difference",
    "compare",
    "displaced",
]
