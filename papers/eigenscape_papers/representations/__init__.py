"""Sparse codes, dictionaries, anchor vectors and word embeddings."""

from eigenscape_papers.representations.anchor import AnchorFit as AnchorFit
from eigenscape_papers.representations.anchor import AnchorTable as AnchorTable
from eigenscape_papers.representations.anchor import EmbeddingDiagnostics as EmbeddingDiagnostics
from eigenscape_papers.representations.anchor import anchor_table as anchor_table
from eigenscape_papers.representations.anchor import embedding_diagnostics as embedding_diagnostics
from eigenscape_papers.representations.anchor import fit_anchors as fit_anchors
from eigenscape_papers.representations.coding_bounds import best_sparse_losses as best_sparse_losses
from eigenscape_papers.representations.coding_bounds import coherence as coherence
from eigenscape_papers.representations.coding_bounds import (
    largest_chi_square_bound as largest_chi_square_bound,
)
from eigenscape_papers.representations.coding_bounds import masked_losses as masked_losses
from eigenscape_papers.representations.coding_bounds import masked_oracle_loss as masked_oracle_loss
from eigenscape_papers.representations.coding_bounds import net_dictionary as net_dictionary
from eigenscape_papers.representations.coding_bounds import pursuit_guarantee as pursuit_guarantee
from eigenscape_papers.representations.dictionary_learning import (
    LearnedDictionary as LearnedDictionary,
)
from eigenscape_papers.representations.dictionary_learning import (
    initial_dictionary as initial_dictionary,
)
from eigenscape_papers.representations.dictionary_learning import (
    learn_dictionary as learn_dictionary,
)
from eigenscape_papers.representations.dictionary_learning import usual_mask_size as usual_mask_size
from eigenscape_papers.representations.estimator import MaskedSparseCoding as MaskedSparseCoding
from eigenscape_papers.representations.language import GPT2 as GPT2
from eigenscape_papers.representations.language import output_states as output_states
from eigenscape_papers.representations.language import read_gpt2 as read_gpt2
from eigenscape_papers.representations.log_linear import LogLinear as LogLinear
from eigenscape_papers.representations.log_linear import log_bulk_partitions as log_bulk_partitions
from eigenscape_papers.representations.log_linear import (
    lowered_word_divergence as lowered_word_divergence,
)
from eigenscape_papers.representations.log_linear import word_divergences as word_divergences
from eigenscape_papers.representations.omp import SparseCodes as SparseCodes
from eigenscape_papers.representations.omp import (
    orthogonal_matching_pursuit as orthogonal_matching_pursuit,
)
from eigenscape_papers.representations.omp import pursue as pursue
from eigenscape_papers.representations.sparse_data import random_dictionary as random_dictionary
from eigenscape_papers.representations.sparse_data import recovery_error as recovery_error
from eigenscape_papers.representations.sparse_data import sparse_samples as sparse_samples
from eigenscape_papers.representations.transfer import PRINTED_CONSTANT as PRINTED_CONSTANT
from eigenscape_papers.representations.transfer import RIGOROUS_CONSTANT as RIGOROUS_CONSTANT
from eigenscape_papers.representations.transfer import Transfer as Transfer
from eigenscape_papers.representations.transfer import anchored_scores as anchored_scores
from eigenscape_papers.representations.transfer import misclassified_gap as misclassified_gap
from eigenscape_papers.representations.transfer import transfer as transfer

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
