"""Whether a matrix is that of the user's own function: what was compared, and the verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eigenscape.records.stored import storable

# A comparison whose relative resolution is worse than the first number says nothing; a deviation of
# more than the second number times the resolution is a contradiction.
_COARSEST, BEYOND = 0.1, 10.0


@storable
@dataclass(frozen=True)
class Check:
    """One comparison.

    Attributes:
        name: What was compared, and on what.
        deviation: Distance of the two, relative to the larger.
        resolution: How small a deviation could be seen.
    """

    name: str
    deviation: float
    resolution: float

    @property
    def is_resolved(self) -> bool:
        """Whether the comparison can tell right from wrong."""
        return self.resolution <= _COARSEST

    @property
    def is_wrong(self) -> bool:
        """Whether the two contradict each other beyond doubt."""
        return self.is_resolved and not self.deviation <= BEYOND * self.resolution

    def __str__(self) -> str:
        """Say it in a line."""
        return f"{self.name}: {self.deviation:.1e} apart, where {self.resolution:.1e} can be seen"


@storable
@dataclass(frozen=True)
class SelfTest:
    """Whether a matrix is that of the user's own function.

    Attributes:
        verdict: "passed", "unresolved" (the function does not let differences be taken) or "off".
        text: Why, and to how many digits.
        checks: What was compared.
    """

    verdict: str
    text: str
    checks: tuple[Check, ...] = ()

    @classmethod
    def of(cls, checks: Sequence[Check], reason: str = "") -> "SelfTest":
        """Sum up checks, none of which is wrong.

        Args:
            checks: The comparisons.
            reason: Why something could not be compared, if so.

        Returns:
            Passed if each kind of comparison resolves something somewhere and nothing was left out.
        """
        resolved = [check for check in checks if check.is_resolved]
        kinds = dict.fromkeys(check.name for check in checks)
        blurred = [name for name in kinds if all(check.name != name for check in resolved)]
        if not resolved or blurred or reason:
            what = " and ".join(blurred) or "its derivatives"
            why = reason or f"differences of the function do not resolve {what}"
            return cls("unresolved", f"Unresolved, because {why}.", tuple(checks))
        worst: dict[str, float] = {}
        for check in resolved:
            digits = max(check.deviation, check.resolution)
            worst[check.name] = max(worst.get(check.name, 0.0), digits)
        listed = ", ".join(f"{name} to {digits:.0e}" for name, digits in worst.items())
        text = f"Agrees with differences of the function itself: {listed}."
        return cls("passed", text, tuple(checks))

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "SelfTest":
        """Make the verdict again from what `dataclasses.asdict` returned."""
        checks = tuple(Check(**check) for check in plain["checks"])
        return cls(plain["verdict"], plain["text"], checks)

    @staticmethod
    def weaker(one: "SelfTest | None", other: "SelfTest | None") -> "SelfTest | None":
        """Return the verdict that promises less; one that is missing promises nothing itself."""
        if one is None or other is None:
            return one or other
        return other if one.verdict == "passed" else one

    def __str__(self) -> str:
        """Return the text."""
        return self.text
