"""Claims of the papers as data: read from TOML files, and judged against what was measured.

The claims of the study wu-rank stand in `eigenscape_papers/wu/claims/wu-rank.toml`, one `[[claim]]`
each. A text that several claims share stands once under `[texts]`; a claim then has
`reason = { text = "its name" }`. What the study is called and what it runs may stand there too.
"""

import dataclasses
import math
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from eigenscape.errors import FileError, near_matches
from eigenscape.records import storable

STATUSES = ("pass", "fail", "not run")
SCALES = ("laptop", "paper")
OWN = "own"  # the scale of a study of a user's network
BOTH = "both"  # in a study's file, of settings that both scales have
# What agreement proves; the headline counts the first alone.
KINDS = {
    "measured": "could fail, and was fixed before the number was seen",
    "revised": "the check was changed after a first run",
    "identity": "true by construction or arithmetic: a self-test",
    "ours": "not the paper's: our correction, control or finding",
}


@storable
@dataclass(frozen=True)
class Measured:
    """What a study measured for one claim.

    Attributes:
        ours: The number.
        spread: Its standard deviation, or half its range, over seeds or pairs; None for none.
    """

    ours: float
    spread: float | None = None

    @classmethod
    def over(cls, values: Sequence[float] | Tensor) -> "Measured":
        """Return the mean of one number for each seed, and its standard deviation over them."""
        numbers = torch.as_tensor(values, dtype=torch.float64)
        return cls(float(numbers.mean()), float(numbers.std()) if len(numbers) > 1 else None)

    def __str__(self) -> str:
        """Return the number with its spread."""
        return f"{self.ours:.4g}" + ("" if self.spread is None else f" ± {self.spread:.2g}")


@dataclass(frozen=True)
class Claim:
    """What a paper says, and how far a measurement may be from it.

    Attributes:
        id: "paper.where.subject.quantity", small letters; the first part names the paper. It is
            also the name of the measured number.
        where: Figure, table or section of the paper.
        says: The claim, in words of our own.
        theirs: The paper's number, or its shape in words.
        low: The least that agrees.
        high: The most that agrees.
        reason: The reason for these ends.
        known: What is known about why ours differs; shown only where it does.
        kind: What agreement proves, one of `KINDS`.
        scales: Where the claim is meant to hold.
        network: The network that `says` names and that a user's own takes the place of.
        was: Of a revised claim, what was checked at first: `says`, `low`, `high`, `ours`.
        number: Where the number stands in the tables of the study, for a claim that the study's
            function does not measure itself: see `runner.judging`.

    Examples:
        >>> claim = Claim("wu.x", "Table 6", "the ratio", "12.3", low=9.7, reason="their range")
        >>> claim.judge(Measured(11.0), scale="paper").status
        'pass'
    """

    id: str
    where: str
    says: str
    theirs: str
    low: float = -math.inf
    high: float = math.inf
    reason: str = ""
    known: str = ""
    kind: str = "measured"
    scales: tuple[str, ...] = (*SCALES, OWN)
    network: str = ""
    was: Mapping[str, str | float] = field(default_factory=dict)
    number: Mapping[str, Any] = field(default_factory=dict)

    @property
    def paper(self) -> str:
        """Short name of the paper, from the id."""
        return self.id.partition(".")[0]

    def expected(self) -> str:
        """Return what agrees, in words."""
        if math.isinf(self.low) and math.isinf(self.high):
            return "any"
        if math.isinf(self.high):
            return f"≥ {self.low:.4g}"
        if math.isinf(self.low):
            return f"≤ {self.high:.4g}"
        # Four digits, and more where rounding would move the ends.
        ends, slack = (self.low, self.high), (self.high - self.low) / 10
        digits = 4
        while slack > 0 and digits < 10 and any(_rounding(v, digits) > slack for v in ends):
            digits += 1
        return f"{self.low:.{digits}g} to {self.high:.{digits}g}"

    def judge(self, measured: Measured | None, *, scale: str, network: str = "") -> "Finding":
        """Compare.

        Args:
            measured: What was measured; None where it was not. A number that is not finite counts
                as not measured.
            scale: The scale of the study.
            network: The name of a user's own network, in place of the one that the claim names.

        Returns:
            The finding.
        """
        if measured is not None and not (scale in self.scales and math.isfinite(measured.ours)):
            measured = None
        agrees = measured is not None and self.low <= measured.ours <= self.high
        is_renamed = bool(self.network and network)
        return Finding(
            id=self.id,
            paper=self.paper,
            where=self.where,
            says=self.says.replace(self.network, network) if is_renamed else self.says,
            theirs=self.theirs,
            ours=None if measured is None else measured.ours,
            spread=None if measured is None else measured.spread,
            expected=self.expected(),
            status="not run" if measured is None else "pass" if agrees else "fail",
            scale=scale,
            kind=self.kind,
            reason=self.reason,
            known=self.known,
            was=self.was,
        )


@dataclass(frozen=True)
class Finding:
    """One claim of a paper beside what was measured.

    Attributes:
        id: Its name, e.g. "wu.table6.f200x2.spectral-ratio".
        paper: Short name of the paper, the first part of the id.
        where: Figure, table or section.
        says: The claim in words.
        theirs: What the paper says: a number or a shape, as text.
        ours: What was measured; None where it was not.
        spread: How far it varies over seeds or pairs of networks; None where it does not.
        expected: What counts as agreement.
        status: "pass", "fail" or "not run".
        scale: "laptop", "paper", or "own" for a user's own network.
        kind: What agreement proves, one of `KINDS`.
        reason: The reason for the tolerance.
        known: What is known about why ours differs, where it does.
        was: Of a revised claim, what was checked at first.
    """

    id: str
    paper: str
    where: str
    says: str
    theirs: str
    ours: float | None
    spread: float | None
    expected: str
    status: str
    scale: str
    kind: str
    reason: str
    known: str
    was: Mapping[str, str | float]

    @property
    def verdict(self) -> str:
        """The status in words: of a paper's claim, a check of our own, or a user's network."""
        if self.status == "not run":
            return self.status
        if self.scale == OWN:
            return "holds" if self.status == "pass" else "does not hold for this network"
        if self.kind in {"identity", "ours"}:
            return "holds" if self.status == "pass" else "does not hold"
        return "agrees" if self.status == "pass" else "differs"

    @property
    def explanation(self) -> str:
        """What is known about a difference; empty where there is none, or the network is another.

        Examples:
            >>> claim = Claim("wu.x", "Table 6", "the ratio", "3", low=3, high=3)
            >>> claim.judge(Measured(4.0), scale="paper").explanation
            'not explained yet'
        """
        if self.status != "fail" or self.scale == OWN:
            return ""
        return self.known or "not explained yet"


def _rounding(value: float, digits: int) -> float:
    return abs(float(f"{value:.{digits}g}") - value)


def counts(findings: Iterable[Finding]) -> dict[str, dict[str, int]]:
    """Return how many claims of each kind have each status."""
    pairs = Counter((finding.kind, finding.status) for finding in findings)
    return {kind: {status: pairs[kind, status] for status in STATUSES} for kind in KINDS}


def summary(findings: Sequence[Finding]) -> str:
    """Say what became of claims, each kind apart.

    Args:
        findings: The claims of one study at one scale.

    Returns:
        A sentence.

    Examples:
        >>> claim = Claim("wu.x", "Table 6", "the ratio", "3", low=3, high=3)
        >>> summary([claim.judge(Measured(4.0), scale="paper")])
        '0 of 1 claims that were measured agree with the paper.'
        >>> summary([claim.judge(Measured(3.0), scale="own")])
        '1 of 1 claims that were measured hold for this network.'
        >>> summary([claim.judge(None, scale="paper")])
        'No claim is judged at this scale.'
    """
    judged = [finding for finding in findings if finding.status != "not run"]
    if not judged:
        return "No claim is judged at this scale."
    if any(finding.scale == OWN for finding in judged):
        num_hold = sum(finding.status == "pass" for finding in judged)
        return f"{num_hold} of {len(judged)} claims that were measured hold for this network."
    words = {
        "measured": "claims that were measured agree with the paper",
        "revised": "claims that were revised after a first run agree",
        "identity": "identities hold",
        "ours": "checks of our own hold",
    }
    clauses = []
    for kind, of_kind in counts(judged).items():
        if total := sum(of_kind.values()):
            clauses.append(f"{of_kind['pass']} of {total} {words[kind]}")
    return "; ".join(clauses) + "."


# --- files ---------------------------------------------------------------------------------------

_FACTS = ("paper", "where", "title", "own", "keeps", "keeps_by")
_WORDS = {"pictures": ("name", "title", "shows"), "tables": ("title", "columns")}
_KEYS = tuple(key.name for key in dataclasses.fields(Claim))
_REQUIRED = ("id", "where", "says", "theirs", "reason", "kind")
_WAS = ("says", "low", "high", "ours")
_NUMBER = ("table", "column", "rows", "take")
TAKES = ("only", "mean", "least", "largest")
_TYPES: dict[str, tuple[Any, str]] = {
    "low": (int | float, "a number"),
    "high": (int | float, "a number"),
    "scales": (list, "a list of scales"),
    "was": (dict, "a table"),
    "number": (dict, "a table"),
}


@cache
def study_file(study: str) -> Mapping[str, Any]:
    """Return what the file of a study says, as TOML has it.

    Args:
        study: Its name; the first part is the folder of the paper.

    Returns:
        Its tables "study", "settings", "pictures", "tables", "texts" and "claim", as far as they
        are there; nothing for a study that has no file.

    Raises:
        FileError: If the file is no TOML, or holds something else.
    """
    path = files("eigenscape_papers") / study.partition("-")[0] / "claims" / f"{study}.toml"
    return _tables(path.read_text("utf-8"), path.name) if path.is_file() else {}


@cache
def claims_of(study: str) -> tuple[Claim, ...]:
    """Return the claims of a study, from its file.

    Args:
        study: Its name.

    Returns:
        The claims in the order of the file; none for a study that has no file.

    Raises:
        FileError: If the file is not as it should be.
    """
    tables = study_file(study)
    return _claims(tables, f"{study}.toml") if tables else ()


@cache
def printed(study: str) -> dict[str, float]:
    """Return the numbers that a paper prints, by the ids of the claims that have one."""
    numbers = {}
    for claim in claims_of(study):
        with suppress(ValueError):
            numbers[claim.id] = float(claim.theirs)
    return numbers


def letters(text: str) -> str:
    """Return the letters and digits of a text, small, for names of pictures."""
    return "".join(c for c in text.lower() if c.isalnum())


def slug(network: str) -> str:
    """Return a network's name as ids have it.

    Examples:
        >>> slug("LeNet5-(fc1-80)")
        'lenet5fc180'
    """
    return letters(network.replace("^", "x"))


def parse_claims(text: str, name: str) -> tuple[Claim, ...]:
    """Read claims.

    Args:
        text: TOML: `[[claim]]` for each, and texts that several share under `[texts]`.
        name: The file, for messages.

    Returns:
        The claims in their order.

    Raises:
        FileError: If something is missing, unknown or of another kind than it should be.
    """
    return _claims(_tables(text, name), name)


def _tables(text: str, name: str) -> dict[str, Any]:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FileError(f"{name} must be TOML; at {error}. Mend it there.") from error
    _require_keys(content, ("study", "settings", "pictures", "tables", "claim", "texts"), name)
    _require_keys(content.get("study", {}), _FACTS, f"{name}, [study]")
    _require_keys(content.get("settings", {}), (BOTH, *SCALES), f"{name}, [settings]")
    for kind, known in _WORDS.items():
        for key, words in content.get(kind, {}).items():
            _require_keys(words, known, f"{name}, [{kind}.{key}]")
    return content


def _claims(content: Mapping[str, Any], name: str) -> tuple[Claim, ...]:
    texts, entries = content.get("texts", {}), content.get("claim", [])
    if not entries:
        raise FileError(f"{name} must hold a `[[claim]]` or more; it has none. Write one.")
    claims = tuple(
        _claim(entry, texts, f"{name}, claim {i + 1}") for i, entry in enumerate(entries)
    )
    twice = [id for id, count in Counter(claim.id for claim in claims).items() if count > 1]
    if twice:
        raise FileError(f"{name}: ids must be unique; {twice} stand there twice. Rename one.")
    return claims


def _claim(entry: Mapping[str, Any], texts: Mapping[str, str], where: str) -> Claim:
    _require_keys(entry, _KEYS, where)
    where += f" ({entry.get('id', 'no id')})"
    missing = [key for key in _REQUIRED if not entry.get(key)]
    if missing:
        raise FileError(f"{where} must have {list(_REQUIRED)}; {missing} are missing. Add them.")
    values = {key: _text(value, texts, f"{where}: `{key}`") for key, value in entry.items()}
    for key, value in values.items():
        kind, words = _TYPES.get(key, (str, "text"))
        if not isinstance(value, kind) or isinstance(value, bool):
            raise FileError(f"{where}: `{key}` must be {words}; got {value!r}. Mend it.")
    _require_names([values["kind"]], KINDS, f"{where}: `kind`")
    if "scales" in values:
        _require_names(values["scales"], (*SCALES, OWN), f"{where}: `scales`")
        values["scales"] = tuple(values["scales"])
    _require_keys(values.get("was", {}), _WAS, f"{where}: `was`")
    if "was" in values and values["kind"] != "revised":
        raise FileError(f"{where}: `was` is for a claim of kind 'revised'; got {values['kind']!r}.")
    if number := values.get("number"):
        _require_keys(number, _NUMBER, f"{where}: `number`")
        _require_names([number.get("take", TAKES[0])], TAKES, f"{where}: `number`: `take`")
        if not {"table", "column"} <= number.keys():
            raise FileError(f"{where}: `number` must have `table` and `column`; got {number}.")
    claim = Claim(**values)
    if claim.expected() == "any" or not claim.low <= claim.high:
        raise FileError(
            f"{where} must have `low`, `high` or both, with low ≤ high; got {claim.low} and "
            f"{claim.high}. Say what agrees."
        )
    return claim


def _text(value: Any, texts: Mapping[str, str], where: str) -> Any:
    """Return a value, or the shared text that it names."""
    if isinstance(value, dict) and value.keys() == {"text"}:
        _require_names([value["text"]], texts, f"{where}: a text")
        return texts[value["text"]]
    return value


def _require_keys(entry: Mapping[str, Any], known: Collection[str], where: str) -> None:
    _require_names(list(entry), known, f"{where}: a key")


def _require_names(names: Iterable[str], known: Collection[str], where: str) -> None:
    for name in names:
        if name not in known:
            raise FileError(
                f"{where} must be one of {list(known)}; got {name!r}. {near_matches(name, known)}"
            )
