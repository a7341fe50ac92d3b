"""The curvature matrices themselves, one final class each."""

from eigenscape.operators.dense import Dense as Dense
from eigenscape.operators.fisher import Fisher as Fisher
from eigenscape.operators.gauss_newton import GaussNewton as GaussNewton
from eigenscape.operators.hessian import Hessian as Hessian
from eigenscape.operators.kronecker_hessian import KroneckerHessian as KroneckerHessian
from eigenscape.operators.layer_hessian import LayerHessian as LayerHessian
from eigenscape.operators.residual import Residual as Residual

__all__ = [
    "Dense",
    "Fisher",
    "GaussNewton",
    "Hessian",
    "KroneckerHessian",
    "LayerHessian",
    "Residual",
]
