"""A user's modules while they are evaluated: other tensors stand in for theirs, no write stays.

What a model and its loss write to (counters, statistics, kept activations) is learned in forward
passes when a risk is made; later each evaluation gets copies of it to write into.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from eigenscape.risk.borrowed import borrowed, state_of, written_among
from eigenscape.risk.changes import Place, Snapshot, Watch


class Guard:
    """The modules that some functions hold, and what they are known to write to.

    Attributes:
        written: The tensors that are copied for each evaluation, for it to write into.
        stand_ins: The float64 copies of the modules' tensors, if any, by the tensors' `id`s.
    """

    def __init__(self, roots: Sequence[object]) -> None:
        """Find the modules.

        Args:
            roots: What is evaluated: a model or function, and a loss.
        """
        self._roots = roots
        self._volatile: set[Place] = set()
        self.written: list[Tensor] = []
        self.stand_ins: dict[int, Tensor] = {}
        self._learned: list[Tensor] | None = None
        self.find_modules()

    def find_modules(self) -> None:
        """Walk to all modules that the functions hold, anew after some were exchanged."""
        self._modules = Watch(self._roots).modules

    def snapshot(
        self, tensors: list[Tensor], data: list[Tensor], ignored: tuple[str, ...]
    ) -> Snapshot:
        """Remember tensors, data, and what else the functions depend on, as they are now."""
        return Snapshot(tensors, data, self._roots, ignored=ignored, volatile=self._volatile)

    @contextmanager
    def inside(self, stand_ins: dict[int, Tensor]) -> Iterator[None]:
        """Let tensors stand in for the modules' own; undo whatever the model does to itself.

        Args:
            stand_ins: What stands in for a tensor, by its `id`.

        Yields:
            Nothing.
        """
        copies = self.stand_ins | {
            id(t): self.stand_ins.get(id(t), t.detach()).clone() for t in self.written
        }
        # A first look protects the parameters from the model, too.
        values = copies | stand_ins if self._learned is None else stand_ins | copies
        with borrowed(self._modules, values):
            yield
        if self._learned is not None:
            self._learned += written_among(self.written, copies)

    @contextmanager
    def in_float64(self) -> Iterator[None]:
        """Let float64 copies stand in for all floating-point tensors of the modules."""
        tensors = [t for t in state_of(self._modules) if t.is_floating_point()]
        self.stand_ins = {id(t): t.detach().double() for t in tensors}
        try:
            yield
        finally:
            self.stand_ins = {}

    @contextmanager
    def learning(self, kept: Callable[[], list[Tensor]]) -> Iterator[None]:
        """Learn in forward passes what is written to; nothing is differentiated meanwhile.

        Args:
            kept: What is to be copied in any case, asked for at the end.

        Yields:
            Nothing.
        """
        known = self.written  # with other data a later look may see no writes
        learned: list[Tensor] = []
        self._learned, self.written = learned, state_of(self._modules)
        objects = Watch(self._roots)
        try:
            yield
        finally:
            self._learned = None
            self._volatile |= objects.changes()
            self.written = list({id(t): t for t in (*kept(), *known, *learned)}.values())
