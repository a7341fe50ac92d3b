"""Train small networks from many seeds at once: a recipe, one function, one record."""

from eigenscape.train._data import epoch_order, mixed_seed
from eigenscape.train.engine import Engine, has_kernels, record_graph
from eigenscape.train.fit import fit
from eigenscape.train.recipe import SGD, Adam, Constant, Cosine, Recipe, RMSprop, Step, Thirds
from eigenscape.train.training import Training

__all__ = [
    "SGD",
    "Adam",
    "Constant",
    "Cosine",
    "Engine",
    "RMSprop",
    "Recipe",
    "Step",
    "Thirds",
    "Training",
    "epoch_order",
    "fit",
    "has_kernels",
    "mixed_seed",
    "record_graph",
]
