"""What demo, docs and tests need: bundled digits, a few small networks, one training loop."""

from eigenscape.zoo.digits import Digits as Digits
from eigenscape.zoo.digits import load_digits as load_digits
from eigenscape.zoo.digits import raw_digits as raw_digits
from eigenscape.zoo.networks import EXAMPLES as EXAMPLES
from eigenscape.zoo.networks import build as build
from eigenscape.zoo.training import Training as Training
from eigenscape.zoo.training import train as train

__all__ = ["EXAMPLES", "Digits", "Training", "build", "load_digits", "raw_digits", "train"]
