"""Several processes that work on one risk, each on its share of the data.

Every process, called a *rank*, runs the same program on the same model and data. Sums over the data
are added over all ranks, so each of them holds the same answer, and nothing else in the package
needs to know how many there are. Two habits keep the ranks in step: what one of them measured is
decided by rank 0 for all (`first`), and a failure of one is a failure of all (`together`).
"""

import importlib
import json
import os
import re
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from eigenscape import errors
from eigenscape.errors import InvalidArgumentError, RankError, require_positive
from eigenscape.records import write_bytes

# What a launcher such as torchrun tells each process; with less they cannot find each other.
_ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# How long a rank waits for another that does not answer. One that died is noticed at once.
_TIMEOUT_SECONDS = 1800.0
_CPU = torch.device("cpu")
_ADVICE = (
    "What was finished is kept in the checkpoint, if there is one; start the same command again to "
    "continue."
)


@dataclass(frozen=True, eq=False)
class Ranks:
    """The processes that share one computation; a single one unless `join` made it.

    All methods but `share` must be called by every rank, in the same order.

    Attributes:
        rank: The number of this process, from 0.
        size: How many there are.
        device: Where the model of this process belongs.

    Examples:
        >>> alone = Ranks()
        >>> alone.is_first, alone.share(5), alone.first("mine"), alone.sum(torch.ones(1)).item()
        (True, range(0, 5), 'mine', 1.0)
        >>> [list(Ranks(rank, 3).share(5)) for rank in range(3)]
        [[0, 1], [2, 3], [4]]
    """

    rank: int = 0
    size: int = 1
    device: torch.device = _CPU
    _groups: list[Any] | None = field(default=None, repr=False)
    _scratch: ExitStack = field(default_factory=ExitStack, repr=False)

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which prints and writes for all."""
        return self.rank == 0

    def share(self, count: int) -> range:
        """Return the numbers of this rank's samples: contiguous, and as many as others have.

        Args:
            count: Samples in all.

        Returns:
            Their range; ranks before this one have the numbers before it.

        Raises:
            InvalidArgumentError: If there are more ranks than samples.
        """
        if count < self.size:
            raise InvalidArgumentError(
                f"{count} samples cannot be shared by {self.size} processes. Start at most {count}."
            )
        each, more = divmod(count, self.size)
        start = self.rank * each + min(self.rank, more)
        return range(start, start + each + (self.rank < more))

    def sum(self, tensor: Tensor) -> Tensor:
        """Add a tensor over all ranks, in float64; of one rank, return it as it is.

        Args:
            tensor: Of the same shape on all ranks.

        Returns:
            The sum, equal to the last bit on all ranks, on the tensor's device.
        """
        if self._groups is None:
            return tensor
        total = tensor.detach().to(self.device, torch.float64, copy=True).contiguous()
        with self._talking():
            dist.all_reduce(total, group=self._group())
        return total.to(tensor.device)

    def first(self, value: Any) -> Any:
        """Return rank 0's value, on every rank.

        Args:
            value: Anything that JSON can write.

        Returns:
            What rank 0 gave, as JSON gives it back.
        """
        if self._groups is None:
            return value
        return json.loads(self._sent_bytes(json.dumps(value).encode()))

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, on every rank, in their order.

        Args:
            value: Anything that JSON can write.

        Returns:
            One value for each rank.
        """
        if self._groups is None:
            return [value]
        content = _bytes(json.dumps(value).encode())
        sizes = [int(size) for size in self._gathered(torch.tensor([len(content)]))]
        padded = torch.cat([content, _blank(max(sizes) - len(content))])
        texts = self._gathered(padded)
        return [json.loads(t[:n].numpy().tobytes()) for t, n in zip(texts, sizes, strict=True)]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Let what fails inside on one rank fail on all, with the same kind of error.

        Without it the others would wait for a rank that went another way. What is inside must be
        this rank's own work: it must not call other methods of `Ranks`.

        Yields:
            Nothing.

        Raises:
            RankError: If another rank met an error that is not of this package.
        """
        if self._groups is None:
            yield
            return
        failure: Exception | None = None
        try:
            yield
        except RankError:  # the ranks have lost each other: there is nobody to tell
            raise
        except Exception as error:
            failure = error
        if float(self.sum(torch.tensor([float(failure is not None)]))) == 0.0:
            return
        reports = self.gather(None if failure is None else [type(failure).__name__, str(failure)])
        rank, (kind, text) = next((i, what) for i, what in enumerate(reports) if what is not None)
        if failure is None or type(failure).__name__ != kind:
            failure = _translated(rank, kind, text)
        raise failure

    def require_same(self, values: Mapping[str, Any]) -> None:
        """Refuse ranks that were given different things to share.

        Args:
            values: What must be alike, by name; anything that JSON can write.

        Raises:
            InvalidArgumentError: On all ranks, if one of them differs from rank 0.
        """
        expected = self.first(dict(values))
        with self.together():
            for name, value in values.items():
                if value != expected[name]:
                    raise InvalidArgumentError(
                        f"`EmpiricalRisk(ranks=...)` needs the same {name} in every process; rank "
                        f"{self.rank} has another than rank 0. Load the same files, and call "
                        "`torch.manual_seed` before anything is drawn or shuffled."
                    )

    def folder(self, path: str | os.PathLike[str] | None) -> Path | None:
        """Return a folder for checkpoints in which all ranks find what rank 0 finds.

        Args:
            path: Where rank 0 keeps them; None for nowhere.

        Returns:
            On rank 0 that folder; on others a temporary copy of it, removed on leaving `join`.
        """
        if path is None or self._groups is None:
            return None if path is None else Path(path)
        here = Path(path) if self.is_first else Path(self._scratch.enter_context(_temporary()))
        names = sorted(p.relative_to(here).as_posix() for p in here.rglob("*") if p.is_file())
        for name in self.first([name for name in names if not name.endswith(".unfinished")]):
            file = here / name
            content = self._sent_bytes(file.read_bytes() if self.is_first else b"")
            if not self.is_first:
                file.parent.mkdir(parents=True, exist_ok=True)
                write_bytes(file, content)
        return here

    def _group(self) -> Any:
        if not self._groups:
            raise RankError(
                f"Rank {self.rank} of {self.size} has left `join`; use what it shares inside "
                "`with eigenscape.parallel.join() as ranks:`."
            )
        return self._groups[0]

    def _sent(self, tensor: Tensor) -> Tensor:
        """Return rank 0's tensor; those of other ranks say its shape."""
        sent = tensor.to(self.device)
        with self._talking():
            dist.broadcast(sent, src=0, group=self._group())
        return sent.cpu()

    def _sent_bytes(self, content: bytes) -> bytes:
        """Return rank 0's bytes."""
        size = int(self._sent(torch.tensor([len(content)])))
        sent = self._sent(_bytes(content) if self.is_first else _blank(size))
        return sent.numpy().tobytes()

    def _gathered(self, tensor: Tensor) -> list[Tensor]:
        mine = tensor.to(self.device)
        gathered = [torch.empty_like(mine) for _ in range(self.size)]
        with self._talking():
            dist.all_gather(gathered, mine, group=self._group())
        return [piece.cpu() for piece in gathered]

    @contextmanager
    def _talking(self) -> Iterator[None]:
        """Say what it means when ranks cannot reach each other."""
        try:
            yield
        except RuntimeError as error:  # what all backends raise, in many words of their own
            # Without the source line in front and the guesses after the first sentence.
            reason = re.sub(r"^\[[^]]*\] ", "", str(error).partition(". ")[0])
            raise RankError(
                f"Rank {self.rank} of {self.size} has lost the others: another process has ended, "
                f"or does not answer ({reason}). {_ADVICE}"
            ) from error


@contextmanager
def join(
    *, device: str | torch.device = "auto", timeout_seconds: float = _TIMEOUT_SECONDS
) -> Iterator[Ranks]:
    """Join the processes that `torchrun` started; without it there is one process.

    Give the ranks to `EmpiricalRisk(..., ranks=ranks)`; every process runs the same lines and gets
    the same answers. They talk by NCCL between GPUs, each process having the one of its local
    number, and by gloo between processors.

    Args:
        device: "auto" for GPUs where there are any, "cpu", or "cuda".
        timeout_seconds: How long to wait for a process that does not answer.

    Yields:
        The ranks.

    Raises:
        InvalidArgumentError: If there are fewer GPUs than processes on this machine.

    Examples:
        >>> with join() as ranks:  # not started by torchrun
        ...     ranks.size
        1
    """
    require_positive(timeout_seconds, "join(timeout_seconds=...)")
    own_device = _place(torch.device("cuda" if device == "auto" and _has_gpu() else _plain(device)))
    # The group is in a list that is emptied at the end: a caller may keep the ranks, but a process
    # group that is still referenced after it was destroyed aborts the process.
    groups: list[Any] = []
    with ExitStack() as stack:
        if dist.is_available() and dist.is_initialized():  # a group of the user's own
            backend = "nccl" if own_device.type == "cuda" else "gloo"
            limit = timedelta(seconds=timeout_seconds)
            groups.append(dist.new_group(backend=backend, timeout=limit))
            stack.callback(lambda: dist.destroy_process_group(groups.pop()))
        elif all(name in os.environ for name in _ENVIRONMENT):
            _start(own_device, timeout_seconds)
            groups.append(dist.group.WORLD)
            stack.callback(dist.destroy_process_group)
            stack.callback(groups.clear)
            stack.enter_context(_told_to_end(dist.get_rank(), dist.get_world_size()))
        else:
            yield Ranks(device=own_device)
            return
        scratch = stack.enter_context(ExitStack())
        ranks = Ranks(dist.get_rank(), dist.get_world_size(), own_device, groups, scratch)
        yield ranks
        ranks.sum(torch.zeros(1))  # all leave together, so that nobody talks to one that has left


def _start(device: torch.device, timeout_seconds: float) -> None:
    """Make the process group that the launcher's environment describes."""
    # PyTorch loads its tracer when it is first needed; if gloo is at work by then, one process in
    # four aborts when it ends (seen with 2.13: 15 runs of 60; none of 60 when loaded before).
    importlib.import_module("torch._dynamo")
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    limit = timedelta(seconds=timeout_seconds)
    try:
        if device.type == "cuda":
            # NCCL reads it once: a rank that does not answer is then an error here, and not the
            # end of this process without a word.
            os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
            dist.init_process_group("nccl", timeout=limit, device_id=device)
        else:
            dist.init_process_group("gloo", timeout=limit)
    except RuntimeError as error:
        raise RankError(
            f"Rank {rank} of {size} could not join the other processes at "
            f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} ({error}). {_ADVICE}"
        ) from error


@contextmanager
def _told_to_end(rank: int, size: int) -> Iterator[None]:
    """Turn the signal by which torchrun ends the ranks that are left into words."""

    def say(*_: object) -> None:
        raise RankError(
            f"Rank {rank} of {size} was told to end: another process has ended, or the job was "
            f"stopped. {_ADVICE}"
        )

    if threading.current_thread() is not threading.main_thread():  # Python allows it there only
        yield
        return
    before = signal.signal(signal.SIGTERM, say)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _has_gpu() -> bool:
    return torch.cuda.is_available() and torch.cuda.device_count() > 0


def _plain(device: str | torch.device) -> str | torch.device:
    return "cpu" if device == "auto" else device


def _place(device: torch.device) -> torch.device:
    """Give each process of a machine a GPU of its own."""
    if device.type != "cuda" or "LOCAL_RANK" not in os.environ:
        return device
    number, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if number >= count or (number > 0 and device.index is not None):
        raise InvalidArgumentError(
            f"This is process {number + 1} on a machine with {count} GPUs; each process needs its "
            f"own. Start at most {count} here with the device 'cuda', or use 'cpu'."
        )
    own_device = torch.device("cuda", number if device.index is None else device.index)
    torch.cuda.set_device(own_device)
    return own_device


def _translated(rank: int, kind: str, text: str) -> Exception:
    """Make another rank's error again: one of ours as it was, since callers tell kinds apart."""
    error_type = getattr(errors, kind, None)
    if isinstance(error_type, type) and issubclass(error_type, errors.EigenscapeError):
        return error_type(text)
    return RankError(f"Rank {rank} failed with {kind}: {text}")


def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="eigenscape-", ignore_cleanup_errors=True)


def _bytes(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else _blank(0)


def _blank(size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.uint8)
