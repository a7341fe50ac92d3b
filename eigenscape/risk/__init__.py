"""The function whose curvature is studied: the only place where a user's world meets ours."""

from eigenscape.risk.as_loss import as_loss as as_loss
from eigenscape.risk.batch import Batch as Batch
from eigenscape.risk.batch import explained as explained
from eigenscape.risk.batch import logits_of as logits_of
from eigenscape.risk.batches import BatchSource as BatchSource
from eigenscape.risk.borrowed import memory_of as memory_of
from eigenscape.risk.changes import Snapshot as Snapshot
from eigenscape.risk.empirical_risk import EmpiricalRisk as EmpiricalRisk
from eigenscape.risk.evaluation import derivatives_explained as derivatives_explained
from eigenscape.risk.evaluation import full_arithmetic as full_arithmetic
from eigenscape.risk.layers import Layer as Layer
from eigenscape.risk.layers import SampleRows as SampleRows
from eigenscape.risk.layers import Tail as Tail
from eigenscape.risk.layers import apply_layer as apply_layer
from eigenscape.risk.layers import capture_tail as capture_tail
from eigenscape.risk.layers import find_layer as find_layer
from eigenscape.risk.layers import from_matrices as from_matrices
from eigenscape.risk.layers import input_numbers as input_numbers
from eigenscape.risk.layers import input_vectors as input_vectors
from eigenscape.risk.layers import is_lookup as is_lookup
from eigenscape.risk.layers import layer_input as layer_input
from eigenscape.risk.layers import matrix_obstacle as matrix_obstacle
from eigenscape.risk.layers import output_vectors as output_vectors
from eigenscape.risk.layers import refuse_recomputed as refuse_recomputed
from eigenscape.risk.layers import require_path as require_path
from eigenscape.risk.layers import to_matrices as to_matrices
from eigenscape.risk.leaves import flat_gradient as flat_gradient
from eigenscape.risk.leaves import leaf_copies as leaf_copies
from eigenscape.risk.losses import BinaryCrossEntropy as BinaryCrossEntropy
from eigenscape.risk.losses import CallableLoss as CallableLoss
from eigenscape.risk.losses import CrossEntropy as CrossEntropy
from eigenscape.risk.losses import Loss as Loss
from eigenscape.risk.losses import Noise as Noise
from eigenscape.risk.losses import OutputProduct as OutputProduct
from eigenscape.risk.losses import SquaredError as SquaredError
from eigenscape.risk.model_loss import ModelLoss as ModelLoss
from eigenscape.risk.model_loss import label_keyword as label_keyword
from eigenscape.risk.model_loss import makes_decoder_inputs as makes_decoder_inputs
from eigenscape.risk.parameters import eval_mode as eval_mode
from eigenscape.risk.slopes import ADVICE as ADVICE
from eigenscape.risk.slopes import DOUBLE as DOUBLE
from eigenscape.risk.slopes import Line as Line
from eigenscape.risk.slopes import Precision as Precision
from eigenscape.risk.slopes import double_backward as double_backward
from eigenscape.risk.slopes import gradient_at as gradient_at
from eigenscape.risk.slopes import in_double_precision as in_double_precision
from eigenscape.risk.slopes import moved_in_place as moved_in_place
from eigenscape.risk.slopes import output_at as output_at
from eigenscape.risk.slopes import random_directions as random_directions
from eigenscape.risk.slopes import samples_to_ask as samples_to_ask
from eigenscape.risk.slopes import slope_checks as slope_checks
from eigenscape.risk.slopes import value_at as value_at
from eigenscape.risk.subsets import curvature_traces as curvature_traces
from eigenscape.risk.subsets import sharpest_samples as sharpest_samples
from eigenscape.risk.telling_samples import few_of_each as few_of_each
from eigenscape.risk.telling_samples import other_samples as other_samples
from eigenscape.risk.telling_samples import telling_batches as telling_batches
from eigenscape.risk.token_samples import TokenLogits as TokenLogits
from eigenscape.risk.token_samples import token_samples as token_samples
from eigenscape.risk.unfolding import is_convolution as is_convolution
from eigenscape.risk.unfolding import is_matrix as is_matrix
from eigenscape.risk.unfolding import num_groups as num_groups

__all__ = [
    "BinaryCrossEntropy",
    "CallableLoss",
    "CrossEntropy",
    "EmpiricalRisk",
    "Loss",
    "ModelLoss",
    "SquaredError",
    "TokenLogits",
    "curvature_traces",
    "sharpest_samples",
    "token_samples",
]
