"""The papers' networks, by name."""

from eigenscape_papers.networks._family import ModelInfo as ModelInfo
from eigenscape_papers.networks.build import build as build
from eigenscape_papers.networks.build import count_parameters as count_parameters
from eigenscape_papers.networks.build import describe as describe
from eigenscape_papers.networks.build import names as names
from eigenscape_papers.networks.gpt import GPT as GPT
from eigenscape_papers.networks.initialisation import EMBEDDING_STD as EMBEDDING_STD
from eigenscape_papers.networks.initialisation import initialise as initialise
from eigenscape_papers.networks.lenet import LeNet5 as LeNet5
from eigenscape_papers.networks.resnet import ResNet18 as ResNet18
from eigenscape_papers.networks.vgg import VGG11 as VGG11

__all__ = [
    "ModelInfo",
    "build",
    "count_parameters",
    "describe",
    "names",
]
