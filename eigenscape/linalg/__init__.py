"""What can be learnt from any operator by multiplying with it."""

from eigenscape.linalg._pictures import BAND as BAND
from eigenscape.linalg._pictures import abscissae as abscissae
from eigenscape.linalg._pictures import density_marks as density_marks
from eigenscape.linalg._pictures import heights as heights
from eigenscape.linalg._pictures import is_zero as is_zero
from eigenscape.linalg._pictures import one_eigenvalue as one_eigenvalue
from eigenscape.linalg._pictures import zero_marks as zero_marks
from eigenscape.linalg._products import require_partition as require_partition
from eigenscape.linalg._products import require_symmetric as require_symmetric
from eigenscape.linalg._trace_methods import Hutchinson as Hutchinson
from eigenscape.linalg._trace_methods import HutchPlusPlus as HutchPlusPlus
from eigenscape.linalg._trace_methods import TraceMethod as TraceMethod
from eigenscape.linalg._trace_methods import XTrace as XTrace
from eigenscape.linalg.density import Kernel as Kernel
from eigenscape.linalg.density import SpectralDensity as SpectralDensity
from eigenscape.linalg.density import spectral_density as spectral_density
from eigenscape.linalg.diagonal import DiagonalEstimate as DiagonalEstimate
from eigenscape.linalg.diagonal import diagonal as diagonal
from eigenscape.linalg.eigsh import eigsh as eigsh
from eigenscape.linalg.iteration import power_iteration as power_iteration
from eigenscape.linalg.iteration import subspace_iteration as subspace_iteration
from eigenscape.linalg.lanczos import LanczosRun as LanczosRun
from eigenscape.linalg.lanczos import lanczos as lanczos
from eigenscape.linalg.noise_floor import NoiseFloor as NoiseFloor
from eigenscape.linalg.noise_floor import noise_floor as noise_floor
from eigenscape.linalg.norms import BlockNorms as BlockNorms
from eigenscape.linalg.norms import NormEstimate as NormEstimate
from eigenscape.linalg.norms import SpectralNorm as SpectralNorm
from eigenscape.linalg.norms import block_norms as block_norms
from eigenscape.linalg.norms import frobenius_norm as frobenius_norm
from eigenscape.linalg.norms import spectral_norm as spectral_norm
from eigenscape.linalg.pairs import certify as certify
from eigenscape.linalg.probes import draw_probes as draw_probes
from eigenscape.linalg.solve import Solution as Solution
from eigenscape.linalg.solve import solve as solve
from eigenscape.linalg.trace import BlockTraces as BlockTraces
from eigenscape.linalg.trace import TraceEstimate as TraceEstimate
from eigenscape.linalg.trace import block_traces as block_traces
from eigenscape.linalg.trace import trace as trace

__all__ = [
    "BlockNorms",
    "BlockTraces",
    "DiagonalEstimate",
    "HutchPlusPlus",
    "Hutchinson",
    "Kernel",
    "LanczosRun",
    "NoiseFloor",
    "NormEstimate",
    "Solution",
    "SpectralDensity",
    "SpectralNorm",
    "TraceEstimate",
    "XTrace",
    "block_norms",
    "block_traces",
    "certify",
    "diagonal",
    "draw_probes",
    "eigsh",
    "frobenius_norm",
    "lanczos",
    "noise_floor",
    "power_iteration",
    "solve",
    "spectral_density",
    "spectral_norm",
    "subspace_iteration",
    "trace",
]
