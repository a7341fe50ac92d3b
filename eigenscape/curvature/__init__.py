"""The curvature matrices, one final class each."""

from eigenscape.curvature.class_gradients import ClassGradients as ClassGradients
from eigenscape.curvature.class_kronecker import ClassKronecker as ClassKronecker
from eigenscape.curvature.classes.loss import require_class_indices as require_class_indices
from eigenscape.curvature.classes.loss import require_class_loss as require_class_loss
from eigenscape.curvature.classes.moments import class_moments as class_moments
from eigenscape.curvature.classes.moments import labels_of as labels_of
from eigenscape.curvature.classes.parts import ClassParts as ClassParts
from eigenscape.curvature.classes.parts import gram_matrix as gram_matrix
from eigenscape.curvature.classes.parts import top_eigenvalues as top_eigenvalues
from eigenscape.curvature.fisher import Fisher as Fisher
from eigenscape.curvature.formed import FormedOperator as FormedOperator
from eigenscape.curvature.gauss_newton import GaussNewton as GaussNewton
from eigenscape.curvature.hessian import Hessian as Hessian
from eigenscape.curvature.kronecker_hessian import KroneckerHessian as KroneckerHessian
from eigenscape.curvature.kronecker_hessian import have_terms as have_terms
from eigenscape.curvature.layer_hessian import LayerHessian as LayerHessian
from eigenscape.curvature.layers.piecewise import curved_operation as curved_operation
from eigenscape.curvature.matrix_layers import matrix_layers as matrix_layers
from eigenscape.curvature.network_matrix import NetworkMatrix as NetworkMatrix
from eigenscape.curvature.output_hessian import OutputHessian as OutputHessian
from eigenscape.curvature.output_hessian import drawing_status as drawing_status
from eigenscape.curvature.products.choice import Choice as Choice
from eigenscape.curvature.products.network import loss_curvature as loss_curvature
from eigenscape.curvature.products.plan import Candidate as Candidate
from eigenscape.curvature.products.plan import Plan as Plan
from eigenscape.curvature.products.representation import BatchProduct as BatchProduct
from eigenscape.curvature.products.representation import Maker as Maker
from eigenscape.curvature.products.representation import Memory as Memory
from eigenscape.curvature.products.representation import OverBatches as OverBatches
from eigenscape.curvature.products.representation import Representation as Representation
from eigenscape.curvature.residual import Residual as Residual
from eigenscape.curvature.roots import MOST_OUTPUTS as MOST_OUTPUTS
from eigenscape.curvature.roots import exact_roots as exact_roots
from eigenscape.curvature.roots import have_exact_roots as have_exact_roots

__all__ = [
    "ClassGradients",
    "ClassKronecker",
    "Fisher",
    "GaussNewton",
    "Hessian",
    "KroneckerHessian",
    "LayerHessian",
    "OutputHessian",
    "Residual",
]
