"""Learned representations that can be checked: sparse codes, and anchors of language models."""

from eigenscape.representations.anchor import AnchorFit as AnchorFit
from eigenscape.representations.anchor import AnchorTable as AnchorTable
from eigenscape.representations.anchor import EmbeddingDiagnostics as EmbeddingDiagnostics
from eigenscape.representations.anchor import anchor_table as anchor_table
from eigenscape.representations.anchor import embedding_diagnostics as embedding_diagnostics
from eigenscape.representations.anchor import fit_anchors as fit_anchors
from eigenscape.representations.coding_bounds import best_sparse_losses as best_sparse_losses
from eigenscape.representations.coding_bounds import coherence as coherence
from eigenscape.representations.coding_bounds import (
    largest_chi_square_bound as largest_chi_square_bound,
)
from eigenscape.representations.coding_bounds import masked_losses as masked_losses
from eigenscape.representations.coding_bounds import masked_oracle_loss as masked_oracle_loss
from eigenscape.representations.coding_bounds import net_dictionary as net_dictionary
from eigenscape.representations.coding_bounds import pursuit_guarantee as pursuit_guarantee
from eigenscape.representations.dictionary_learning import LearnedDictionary as LearnedDictionary
from eigenscape.representations.dictionary_learning import initial_dictionary as initial_dictionary
from eigenscape.representations.dictionary_learning import learn_dictionary as learn_dictionary
from eigenscape.representations.dictionary_learning import usual_mask_size as usual_mask_size
from eigenscape.representations.estimator import MaskedSparseCoding as MaskedSparseCoding
from eigenscape.representations.language import GPT2 as GPT2
from eigenscape.representations.language import output_states as output_states
from eigenscape.representations.language import read_gpt2 as read_gpt2
from eigenscape.representations.log_linear import LogLinear as LogLinear
from eigenscape.representations.log_linear import log_bulk_partitions as log_bulk_partitions
from eigenscape.representations.log_linear import lowered_word_divergence as lowered_word_divergence
from eigenscape.representations.log_linear import word_divergences as word_divergences
from eigenscape.representations.omp import SparseCodes as SparseCodes
from eigenscape.representations.omp import (
    orthogonal_matching_pursuit as orthogonal_matching_pursuit,
)
from eigenscape.representations.sparse_data import random_dictionary as random_dictionary
from eigenscape.representations.sparse_data import recovery_error as recovery_error
from eigenscape.representations.sparse_data import sparse_samples as sparse_samples
from eigenscape.representations.transfer import PRINTED_CONSTANT as PRINTED_CONSTANT
from eigenscape.representations.transfer import RIGOROUS_CONSTANT as RIGOROUS_CONSTANT
from eigenscape.representations.transfer import Transfer as Transfer
from eigenscape.representations.transfer import anchored_scores as anchored_scores
from eigenscape.representations.transfer import misclassified_gap as misclassified_gap
from eigenscape.representations.transfer import transfer as transfer

__all__ = [
    "GPT2",
    "PRINTED_CONSTANT",
    "RIGOROUS_CONSTANT",
    "AnchorFit",
    "AnchorTable",
    "EmbeddingDiagnostics",
    "LearnedDictionary",
    "LogLinear",
    "MaskedSparseCoding",
    "SparseCodes",
    "Transfer",
    "anchor_table",
    "anchored_scores",
    "best_sparse_losses",
    "coherence",
    "embedding_diagnostics",
    "fit_anchors",
    "initial_dictionary",
    "largest_chi_square_bound",
    "learn_dictionary",
    "log_bulk_partitions",
    "lowered_word_divergence",
    "masked_losses",
    "masked_oracle_loss",
    "misclassified_gap",
    "net_dictionary",
    "orthogonal_matching_pursuit",
    "output_states",
    "pursuit_guarantee",
    "random_dictionary",
    "read_gpt2",
    "recovery_error",
    "sparse_samples",
    "transfer",
    "usual_mask_size",
    "word_divergences",
]
