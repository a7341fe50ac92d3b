"""Dong et al. (2025): the block-diagonal structure of the Hessian."""

from eigenscape_papers.dong._pictures import block_panel as block_panel
from eigenscape_papers.dong._pictures import law_panel as law_panel
from eigenscape_papers.dong.adam_diagonal import adam_diagonal as adam_diagonal
from eigenscape_papers.dong.block_preconditioning import (
    BlockPreconditioning as BlockPreconditioning,
)
from eigenscape_papers.dong.block_preconditioning import (
    block_preconditioning as block_preconditioning,
)
from eigenscape_papers.dong.blocks_study import network_scores as network_scores

__all__ = [
    "BlockPreconditioning",
    "adam_diagonal",
    "block_panel",
    "block_preconditioning",
    "law_panel",
]
