"""The curvature matrices themselves, one final class each."""

from eigenscape.operators._class_loss import require_class_indices as require_class_indices
from eigenscape.operators._class_loss import require_class_loss as require_class_loss
from eigenscape.operators._class_moments import labels_of as labels_of
from eigenscape.operators._class_parts import ClassParts as ClassParts
from eigenscape.operators._class_parts import gram_matrix as gram_matrix
from eigenscape.operators._class_parts import top_eigenvalues as top_eigenvalues
from eigenscape.operators._matrix_layers import matrix_layers as matrix_layers
from eigenscape.operators._piecewise import curved_operation as curved_operation
from eigenscape.operators._roots import MOST_OUTPUTS as MOST_OUTPUTS
from eigenscape.operators._roots import exact_roots as exact_roots
from eigenscape.operators._roots import have_exact_roots as have_exact_roots
from eigenscape.operators.class_gradients import ClassGradients as ClassGradients
from eigenscape.operators.class_kronecker import ClassKronecker as ClassKronecker
from eigenscape.operators.dense import Dense as Dense
from eigenscape.operators.fisher import Fisher as Fisher
from eigenscape.operators.gauss_newton import GaussNewton as GaussNewton
from eigenscape.operators.hessian import Hessian as Hessian
from eigenscape.operators.khatri_rao import KhatriRao as KhatriRao
from eigenscape.operators.kronecker_hessian import KroneckerHessian as KroneckerHessian
from eigenscape.operators.kronecker_hessian import have_terms as have_terms
from eigenscape.operators.layer_hessian import LayerHessian as LayerHessian
from eigenscape.operators.output_hessian import OutputHessian as OutputHessian
from eigenscape.operators.residual import Residual as Residual
from eigenscape.telling_samples import telling_batches as telling_batches

# The matrices; what stands above and not here serves other rooms.
__all__ = [
    "ClassGradients",
    "ClassKronecker",
    "Dense",
    "Fisher",
    "GaussNewton",
    "Hessian",
    "KhatriRao",
    "KroneckerHessian",
    "LayerHessian",
    "OutputHessian",
    "Residual",
]
