"""What every algorithm returns: a frozen record with its status, its cost and its seed."""

import dataclasses
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from eigenscape.errors import ConvergenceWarning, EigenscapeError


@dataclass(frozen=True)
class Status:
    """Whether a computation reached what was asked, and if not, what to do.

    Attributes:
        converged: True if everything that was asked for was reached.
        text: What happened; advice where it did not converge.
    """

    converged: bool
    text: str

    def __bool__(self) -> bool:
        """Read `if record.status:` as "if it converged"."""
        return self.converged

    def __str__(self) -> str:
        """Return the text alone."""
        return self.text

    def warn(self) -> "Status":
        """Issue a `ConvergenceWarning` if not converged, and return the status."""
        if not self.converged:
            warnings.warn(self.text, ConvergenceWarning, stacklevel=3)
        return self


# Compared by identity: a field-by-field comparison of tensors has no truth value.
@dataclass(frozen=True, eq=False)
class Record:
    """Base of all results.

    Attributes:
        status: Whether it converged, with advice.
        num_products: Products with the operator that were spent, columns counted one by one.
        seed: What fixed the random numbers.
    """

    status: Status
    num_products: int
    seed: int

    def require_converged(self) -> None:
        """Raise if the result did not converge, for those who prefer an exception.

        Raises:
            EigenscapeError: With the status text.
        """
        if not self.status:
            raise EigenscapeError(self.status.text)

    def to_dict(self) -> dict[str, Any]:
        """Return plain Python values, ready for `json.dumps`."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}


@dataclass(frozen=True)
class Progress:
    """How far a long computation has come.

    Attributes:
        task: What is being done.
        done: Steps finished.
        total: Steps planned (an upper bound where the work may end early).
        seconds: Time spent so far in this process.
        seconds_left: Estimate of the time left, or None before there is one.
    """

    task: str
    done: int
    total: int
    seconds: float
    seconds_left: float | None


ProgressCallback = Callable[[Progress], None]


def _plain(value: object) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, Status):
        return {"converged": value.converged, "text": value.text}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value
