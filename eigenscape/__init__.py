"""See and use the curvature of neural networks: exact operators, certified solvers."""

from eigenscape.knockout import projection_knockout as projection_knockout
from eigenscape.knockout import subtraction_knockout as subtraction_knockout
from eigenscape.linalg import EigenPairs as EigenPairs
from eigenscape.linalg import Hutchinson as Hutchinson
from eigenscape.linalg import HutchPlusPlus as HutchPlusPlus
from eigenscape.linalg import Kernel as Kernel
from eigenscape.linalg import SpectralDensity as SpectralDensity
from eigenscape.linalg import XTrace as XTrace
from eigenscape.linalg import block_norms as block_norms
from eigenscape.linalg import block_traces as block_traces
from eigenscape.linalg import certify as certify
from eigenscape.linalg import diagonal as diagonal
from eigenscape.linalg import eigsh as eigsh
from eigenscape.linalg import frobenius_norm as frobenius_norm
from eigenscape.linalg import lanczos as lanczos
from eigenscape.linalg import power_iteration as power_iteration
from eigenscape.linalg import solve as solve
from eigenscape.linalg import spectral_density as spectral_density
from eigenscape.linalg import spectral_norm as spectral_norm
from eigenscape.linalg import subspace_iteration as subspace_iteration
from eigenscape.linalg import trace as trace
from eigenscape.linear_operator import LinearOperator as LinearOperator
from eigenscape.losses import BinaryCrossEntropy as BinaryCrossEntropy
from eigenscape.losses import CrossEntropy as CrossEntropy
from eigenscape.losses import SquaredError as SquaredError
from eigenscape.operators import Dense as Dense
from eigenscape.operators import Fisher as Fisher
from eigenscape.operators import GaussNewton as GaussNewton
from eigenscape.operators import Hessian as Hessian
from eigenscape.operators import LayerHessian as LayerHessian
from eigenscape.operators import Residual as Residual
from eigenscape.partition import Partition as Partition
from eigenscape.risk import EmpiricalRisk as EmpiricalRisk
from eigenscape.space import Block as Block
from eigenscape.space import ParamSpace as ParamSpace

__version__ = "0.1.0"

__all__ = [
    "BinaryCrossEntropy",
    "Block",
    "CrossEntropy",
    "Dense",
    "EigenPairs",
    "EmpiricalRisk",
    "Fisher",
    "GaussNewton",
    "Hessian",
    "HutchPlusPlus",
    "Hutchinson",
    "Kernel",
    "LayerHessian",
    "LinearOperator",
    "ParamSpace",
    "Partition",
    "Residual",
    "SpectralDensity",
    "SquaredError",
    "XTrace",
    "block_norms",
    "block_traces",
    "certify",
    "diagonal",
    "eigsh",
    "frobenius_norm",
    "lanczos",
    "power_iteration",
    "projection_knockout",
    "solve",
    "spectral_density",
    "spectral_norm",
    "subspace_iteration",
    "subtraction_knockout",
    "trace",
]
