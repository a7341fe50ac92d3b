"""The networks of the papers and two small ones, by the names that the papers give them."""

from eigenscape.models._family import ModelInfo as ModelInfo
from eigenscape.models.build import build as build
from eigenscape.models.build import count_parameters as count_parameters
from eigenscape.models.build import describe as describe
from eigenscape.models.build import names as names

__all__ = ["ModelInfo", "build", "count_parameters", "describe", "names"]
