"""One backward pass turned into a graph that can be cut, pruned and replayed."""

from eigenscape.tracing.staged import Staged as Staged

__all__ = [
    "Staged",
]
