"""Flat parameter vectors and the tensors that they are made of."""

from eigenscape.space.param_space import Block as Block
from eigenscape.space.param_space import ParamSpace as ParamSpace
from eigenscape.space.partition import Partition as Partition

__all__ = [
    "Block",
    "ParamSpace",
    "Partition",
]
