"""Training of many seeds at once."""

from eigenscape_papers.ensemble.engine import Engine as Engine
from eigenscape_papers.ensemble.fit import fit as fit
from eigenscape_papers.ensemble.recipe import SGD as SGD
from eigenscape_papers.ensemble.recipe import Adam as Adam
from eigenscape_papers.ensemble.recipe import Constant as Constant
from eigenscape_papers.ensemble.recipe import Cosine as Cosine
from eigenscape_papers.ensemble.recipe import Recipe as Recipe
from eigenscape_papers.ensemble.recipe import RMSprop as RMSprop
from eigenscape_papers.ensemble.recipe import Step as Step
from eigenscape_papers.ensemble.recipe import Thirds as Thirds
from eigenscape_papers.ensemble.training import Training as Training

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
    "fit",
]
