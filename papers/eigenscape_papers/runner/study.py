"""A study: settings for each scale, the function that measures, and the claims it can judge."""

import dataclasses
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from eigenscape.errors import (
    ConvergenceWarning,
    FileError,
    InvalidArgumentError,
    UnknownNameError,
    require_choice,
)
from eigenscape.records import Picture, Status
from eigenscape_papers.runner.cast import Cast
from eigenscape_papers.runner.claims import (
    BOTH,
    OWN,
    SCALES,
    Claim,
    Measured,
    claims_of,
    study_file,
)
from eigenscape_papers.runner.portrait import left_out
from eigenscape_papers.runner.study_result import CONVERGED, DOUBT, Sheet, StudyResult
from eigenscape_papers.runner.tables import read_number
from eigenscape_papers.runner.workshop import Networks, Trained, Workshop, device_name, told_again

T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """What a study runs at one scale.

    Attributes:
        casts: Its networks; none for a study of theory.
        options: Its numbers, by name.
        note: What differs from the paper.
        dtype: What curvature is computed in. On a GPU, convolutions are many times slower in
            float64.
    """

    casts: tuple[Cast, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    dtype: torch.dtype = torch.float64


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a study's function returns.

    Attributes:
        measured: A number for each claim that could be measured, by its id; no other.
        pictures: Figures.
        sheets: Tables.
        notes: What a reader should know.
        num_products: Products spent.
        by_name: Numbers whose ids are made from the name of a network, as far as networks go that
            the paper never had; those that no claim asks for are dropped.
        earlier: Devices of the earlier runs in which everything was measured; none if it was now.
    """

    measured: dict[str, Measured]
    pictures: tuple[Picture, ...] = ()
    sheets: tuple[Sheet, ...] = ()
    notes: tuple[str, ...] = ()
    num_products: int = 0
    by_name: dict[str, Measured] = field(default_factory=dict)
    earlier: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class Study:
    """One figure or table of a paper, or several that show the same.

    Attributes:
        name: For the command line.
        paper: Short name of the paper.
        where: Figures, tables, theorems.
        title: What it asks, in a sentence.
        settings: By scale.
        measure: Does the work.
        own: Whether a user's own network may take the place of the casts.
        claims: What the paper says; by default those of the file with the study's name.
        keeps: What it calls that which it measures of its networks and a workshop keeps; by
            default what the file says. Empty where nothing is kept.
        keeps_by: "cast" where each cast is measured by itself, "label" where those of one label
            are measured together.
    """

    name: str
    paper: str
    where: str
    title: str
    settings: Mapping[str, Setting]
    measure: Callable[[Setting, Workshop], Outcome]
    own: bool = True
    claims: tuple[Claim, ...] = ()
    keeps: str = ""
    keeps_by: str = "cast"

    def __post_init__(self) -> None:
        """Read the claims, and what is kept."""
        if not self.claims:
            object.__setattr__(self, "claims", claims_of(self.name))
        facts = study_file(self.name).get("study", {})
        for key in {"keeps", "keeps_by"} & facts.keys():
            object.__setattr__(self, key, facts[key])
        require_choice(self.keeps_by, ("cast", "label"), f"Study({self.name!r}, keeps_by=...)")

    @classmethod
    def of(
        cls,
        name: str,
        measure: Callable[[Setting, Workshop], Outcome],
        casts: Mapping[str, tuple[Cast, ...]] | None = None,
    ) -> "Study":
        """Return a study whose title and settings stand in its file, above its claims.

        `[study]` has `paper`, `where`, `title`, and `own = false` where no other networks fit.
        `[settings.laptop]` and `[settings.paper]` have the options of a scale, its `note` and its
        `dtype`; those of `[settings.both]` hold for both.

        Args:
            name: Its name, that of the file.
            measure: Does the work.
            casts: The networks of each scale, for a study that has some.

        Returns:
            The study.

        Raises:
            FileError: If something is missing in the file, or unknown.
        """
        tables = study_file(name)
        facts, scales = tables.get("study", {}), tables.get("settings", {})
        needed = {"paper", "where", "title"} - facts.keys() | set(SCALES) - scales.keys()
        if needed:
            raise FileError(
                f"{name}.toml must have `[study]` with paper, where and title, and settings for "
                f"{list(SCALES)}; it has {sorted(facts)} and {sorted(scales)}. Add "
                f"{sorted(needed)}."
            )
        settings = {}
        for scale in SCALES:
            options = {**scales.get(BOTH, {}), **scales[scale]}
            note, dtype = options.pop("note", ""), getattr(torch, options.pop("dtype", "float64"))
            settings[scale] = Setting((casts or {}).get(scale, ()), _options(options), note, dtype)
        return cls(name, settings=settings, measure=measure, **facts)

    def setting(self, scale: str, own: Cast | None = None) -> Setting:
        """Return what is run.

        Args:
            scale: "laptop" or "paper".
            own: A user's own networks in place of the study's.

        Returns:
            The setting of the scale, with those networks.

        Raises:
            InvalidArgumentError: If there is no such scale, or no place for other networks.
        """
        require_choice(scale, tuple(self.settings), "run_study(scale=...)")
        if own is None:
            return self.settings[scale]
        if not self.own:
            raise InvalidArgumentError(
                f"`eigenscape study {self.name}` is about networks of its own making; it takes no "
                "`--model`. `eigenscape study` lists those that do."
            )
        return dataclasses.replace(self.settings[scale], casts=(own,), note="")

    def measured_with(self, cast: Cast, scale: str) -> list[Cast]:
        """Return the networks that are measured and kept together with one.

        Args:
            cast: One of the scale's.
            scale: "laptop" or "paper".

        Returns:
            They, the one among them; none if the study keeps nothing.
        """
        if not self.keeps:
            return []
        if self.keeps_by == "cast":
            return [cast]
        return [each for each in self.settings[scale].casts if each.label == cast.label]

    def keeps_file(self, cast: Cast, scale: str, workshop: Workshop) -> Path | None:
        """Return where a workshop keeps what is measured of a network; None for nowhere.

        Args:
            cast: One of the scale's.
            scale: "laptop" or "paper".
            workshop: Where.

        Returns:
            The file; it need not be there.
        """
        casts, setting = self.measured_with(cast, scale), self.settings[scale]
        if not casts:
            return None
        shop = dataclasses.replace(workshop, dtype=setting.dtype)
        return shop.part_file(self.keeps, casts, setting.options)


def _options(value: Any) -> Any:
    """Return values of TOML as records have them: tuples for its lists, None for "none"."""
    if isinstance(value, Mapping):
        return {key: _options(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(map(_options, value))
    return None if value == "none" else value


def of_each_cast(
    name: str,
    setting: Setting,
    workshop: Workshop,
    measure: Callable[[Cast, Setting, Workshop], T],
    casts: Sequence[Cast] | None = None,
) -> list[T]:
    """Measure something of each cast, or read it where it was kept.

    Args:
        name: Of what is measured.
        setting: Its casts are looked at; its options decide.
        workshop: Where networks are, and what was measured of them.
        measure: Does it for one cast.
        casts: In place of those of the setting.

    Returns:
        What was measured of each.
    """
    return [
        workshop.part(name, (cast,), setting.options, partial(measure, cast, setting, workshop))
        for cast in (setting.casts if casts is None else casts)
    ]


def run_study(
    study: Study, workshop: Workshop, *, scale: str = "laptop", own: Cast | None = None
) -> StudyResult:
    """Run a study.

    Args:
        study: Which.
        workshop: Where networks are kept.
        scale: "laptop" or "paper".
        own: A user's own networks in place of the study's; the scale is then "own", and the
            numbers that the paper gives for its networks are not judged.

    Returns:
        Figures, tables, and a number for each claim. The status says whether all parts converged.

    Raises:
        InvalidArgumentError: If the study has no such scale, or no place for other networks.
        UnknownNameError: If the study measured something that it does not claim.
    """
    setting = study.setting(scale, own)
    scale = scale if own is None else OWN
    # The same networks, another list.
    shop = dataclasses.replace(workshop, asked={}, dtype=setting.dtype)
    started = time.monotonic()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        outcome = study.measure(setting, shop)
    doubts = told_again(caught)
    unknown = sorted(outcome.measured.keys() - {claim.id for claim in study.claims})
    if unknown:
        raise UnknownNameError(f"`{study.name}` measured what none of its claims says: {unknown}.")
    claimed = outcome.by_name | outcome.measured
    looked_up, lacking = _looked_up(study.claims, claimed, outcome.sheets)
    claimed |= looked_up
    measured = {claim.id: claimed[claim.id] for claim in study.claims if claim.id in claimed}
    earlier = outcome.earlier or _all_earlier(shop.asked.values())
    return StudyResult(
        status=Status(not doubts, f"{DOUBT}{doubts[0]}" if doubts else CONVERGED),
        num_products=outcome.num_products,
        seed=0,
        study=study.name,
        paper=study.paper,
        where=study.where,
        title=study.title,
        scale=scale,
        settings={
            **{f"networks {i + 1}": _words(cast) for i, cast in enumerate(setting.casts)},
            **dict(setting.options),
        },
        measured=measured,
        figures=outcome.pictures if own is None else _for_files(outcome.pictures),
        sheets=outcome.sheets,
        notes=tuple(
            note
            for note in (
                setting.note,
                _precision(setting),
                _trained(shop.asked.values()),
                _elsewhere(shop.asked.values()),
                "" if own is None else _left_out(shop.asked.get(own.key)),
                *outcome.notes,
                *lacking,
            )
            if note
        ),
        seconds=0.0 if earlier else time.monotonic() - started,
        device=", ".join(sorted(earlier)) or device_name(workshop.device),
        network="" if own is None else own.model,
    )


def _looked_up(
    claims: Sequence[Claim], claimed: Collection[str], sheets: Sequence[Sheet]
) -> tuple[dict[str, Measured], list[str]]:
    """Return the numbers of those claims that say where in the tables theirs stands, and notes."""
    numbers, notes = {}, []
    for claim in claims:
        if claim.number and claim.id not in claimed:
            try:
                numbers[claim.id] = read_number(sheets, claim.number)
            except FileError as error:
                notes.append(f"{claim.id} was not measured: {error}.")
    return numbers, notes


def _for_files(pictures: Sequence[Picture]) -> tuple[Picture, ...]:
    """Give pictures names that files can have: some hold what a user calls theirs."""
    renamed: list[Picture] = []
    taken: Counter[str] = Counter()
    for picture in pictures:
        name = re.sub(r"[^a-z0-9]+", "-", picture.name.lower()).strip("-")
        taken[name] += 1
        name = name if taken[name] == 1 else f"{name}-{taken[name]}"
        renamed.append(dataclasses.replace(picture, name=name))
    return tuple(renamed)


def _left_out(networks: Networks | Trained | None) -> str:
    """Say which layers of a user's own network are not looked at."""
    if not isinstance(networks, Networks):
        return ""
    return left_out(networks.risk(networks.cast.seeds[0]))


def _precision(setting: Setting) -> str:
    """Say in what curvature was computed, where it is not the usual."""
    if setting.dtype == Setting.dtype:
        return ""
    return f"Curvature in {str(setting.dtype).removeprefix('torch.')}."


def _trained(networks: Collection[Networks | Trained]) -> str:
    """Say how far each training came: not every end of one is a minimum."""
    casts = [each.cast for each in networks]
    endings = []
    for each in networks:
        loss = f"loss {_over_seeds(each.train_loss)}"
        share = each.train_accuracy and f", accuracy {_over_seeds(each.train_accuracy)}"
        rate = each.learning_rate if isinstance(each, Networks) else None
        chosen = f", learning rate {rate:g}" if rate else ""
        endings.append(f"{each.cast.label_among(casts)}: {loss}{share or ''}{chosen}")
    return f"At the end of training: {'; '.join(endings)}." if endings else ""


def _all_earlier(networks: Collection[Networks | Trained]) -> frozenset[str]:
    """Return where everything was measured, if all of it was in other runs; else nothing."""
    devices = {one.device for one in networks if isinstance(one, Trained)}
    is_all = all(isinstance(one, Trained) for one in networks)
    return frozenset(devices) if is_all else frozenset()


def _elsewhere(networks: Collection[Networks | Trained]) -> str:
    """Say what was measured in another run."""
    labels = [f"{one.cast.label} on {one.device}" for one in networks if isinstance(one, Trained)]
    return f"Measured in an earlier run: {', '.join(labels)}." if labels else ""


def _over_seeds(values: Sequence[float]) -> str:
    return str(Measured.over(values))


def _words(cast: Cast) -> str:
    samples = "all samples" if cast.samples is None else f"{cast.samples} samples"
    seeds = f"{len(cast.seeds)} seed{'s' if len(cast.seeds) > 1 else ''}"
    init = f"{cast.init} weights, " if cast.own is None else ""
    rates = f" (learning rate: best of {', '.join(map(str, cast.rates))})" if cast.rates else ""
    return f"{cast.label}, {samples}, {seeds}, {init}{cast.recipe}{rates}"
