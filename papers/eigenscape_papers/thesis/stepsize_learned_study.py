"""Thesis Figs 5.4, 5.5, D.1 to D.3: an optimiser learned on training or on validation loss.

TbT: the meta-objective is the loss on the samples that are fitted; TbV: on a held-out half of them.
Networks that are trained with a rule then fit all their samples, whichever it is: a rule that is
learned needs none to be judged by. Cases are pairs of samples a problem has and the share of its
labels that are drawn anew.
"""

import itertools
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eigenscape.records import (
    Axis,
    Band,
    Line,
    Mark,
    Panel,
    Picture,
    Status,
    digest,
    read_tensors,
    tensor_text,
    text_tensor,
    write_tensors,
)
from eigenscape_papers.datasets import load
from eigenscape_papers.runner import (
    Measured,
    Outcome,
    Setting,
    Study,
    Workshop,
    counted,
    device_name,
    rounded,
    sheet,
)
from eigenscape_papers.stepsize import (
    Course,
    ProblemKind,
    Problems,
    UpdateRule,
    draw_problems,
    learn_rules,
    train_networks,
)

_OBJECTIVES = {"TbT": "training", "TbV": "validation"}
_TINTS = {"TbT": "gauss_newton", "TbV": "hessian", "SGD": "muted"}
_WINDOWS = 100  # points of a curve of meta-objectives
_COURSE = ("steps", "train_losses", "train_accuracies", "judged_losses", "test_accuracies")
_ALL = "all"  # in place of a number of samples
_NEW = 10_000  # number of the first problem that no rule was learned on
Case = tuple[int, float]
Courses = Mapping[str, Sequence[Course]]
Samples = tuple[Tensor, Tensor]  # features and classes


@dataclass(frozen=True)
class Part:
    """What one rule, or SGD, does in a case."""

    case: Case
    name: str  # TbT, TbV or SGD
    seed: int = 0

    @property
    def file(self) -> str:
        """Its name among those of its setting."""
        return f"{self.case[0]}-{self.case[1]}-{self.name}-{self.seed}.safetensors"


def parts(options: Mapping[str, Any], data: Samples) -> list[Part]:
    """Return all parts, case by case."""
    wanted = []
    for n, noise in options["cases"]:
        case = (len(data[0]) if n == _ALL else n, noise)
        for seed in range(options["num_rules"]):
            wanted += [Part(case, name, seed) for name in _OBJECTIVES]
        wanted.append(Part(case, "SGD"))
    return wanted


def samples(options: Mapping[str, Any], workshop: Workshop) -> tuple[Samples, Samples]:
    """Return what problems are drawn from, and the test samples."""
    both = []
    for split in ("train", "test"):
        data = load(options["data"], split=split, folder=workshop.data_dir, normalise="unit")
        data = data.flattened().to(workshop.device, torch.float32)
        both.append((data.inputs, data.targets))
    return both[0], both[1]


def together(wanted: Sequence[Part], options: Mapping[str, Any]) -> list[list[Part]]:
    """Return parts in groups: rules that are learned side by side, and SGD of each case."""
    groups: dict[Any, list[Part]] = {}
    for one in wanted:
        key = one if one.name == "SGD" else (str(_learning(one, options)), one.seed)
        groups.setdefault(key, []).append(one)
    return list(groups.values())


def finish(
    group: Sequence[Part],
    options: Mapping[str, Any],
    data: Samples,
    test: Samples,
    workshop: Workshop,
) -> None:
    """Learn rules on some problems and train networks with them on new ones, and keep the courses.

    What is there is not done again.

    Args:
        group: One of `together`.
        options: Numbers of the study.
        data: Samples of problems.
        test: Other samples.
        workshop: Where it is kept.
    """
    missing = [one for one in group if not _place(one, options, workshop).is_file()]
    if not missing:
        return
    run: dict[str, Any] = {"num_steps": options["steps"], "num_looks": options["looks"]}
    run |= {"hidden": options["hidden"]}
    first = missing[0]
    if first.name == "SGD":
        course = _descent(options, data, test, _kind(first), run)
        _keep(course, _place(first, options, workshop), workshop)
        return
    unfinished = _unfinished(missing, options, workshop)
    learned = learn_rules(
        *data,
        [ProblemKind(_OBJECTIVES[one.name], **_kind(one)) for one in missing],
        hidden=options["hidden"],
        start=UpdateRule.random(options["widths"], seed=first.seed),
        checkpoint=unfinished,
        seed=first.seed,
        progress=workshop.progress,
        **_learning(first, options),
    )
    for one, rule in zip(missing, learned, strict=True):
        problems = _new_problems(data, options, _kind(one))
        course = train_networks(rule.rule, problems, test, **run)
        target = _place(one, options, workshop)
        _keep(course, target, workshop, rule.meta_losses, rule.num_skipped)
    shutil.rmtree(unfinished)


def _kind(rule: Part) -> dict[str, Any]:
    return {"num_samples": rule.case[0], "label_noise": rule.case[1]}


def _keep(
    course: Course, target: Path, workshop: Workshop, losses: Tensor | None = None, skipped: int = 0
) -> None:
    """Write how networks fared, and how their rule was learned."""
    kept = {name: getattr(course, name) for name in _COURSE}
    kept["meta_losses"] = torch.zeros(0, dtype=torch.float64) if losses is None else losses
    kept |= {"skipped": torch.tensor(skipped), "device": text_tensor(device_name(workshop.device))}
    target.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(target, kept)


def _learning(rule: Part, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return how its rule is learned; with fewest samples it may be for longer."""
    fewest = min((n for n, _ in options["cases"] if n != _ALL), default=None)
    learning = {**options["learning"], **(options["few"] if rule.case[0] == fewest else {})}
    return {name: None if value == _ALL else value for name, value in learning.items()}


def _place(rule: Part, options: Mapping[str, Any], workshop: Workshop) -> Path:
    """Return where a part is kept; which others there are does not decide over it."""
    deciding = {key: options[key] for key in options if key not in ("cases", "num_rules", "few")}
    deciding["learning"] = _learning(rule, options)
    return workshop.folder / "rules" / f"{options['data']}-{digest(deciding)}" / rule.file


def _unfinished(group: Sequence[Part], options: Mapping[str, Any], workshop: Workshop) -> Path:
    """Return where rules are kept while they are learned."""
    names = [rule.file for rule in group]
    return _place(group[0], options, workshop).with_name(f"unfinished-{digest(names)}")


def _descent(
    options: Mapping[str, Any],
    data: Samples,
    test: Samples,
    kind: Mapping[str, Any],
    run: Mapping[str, Any],
) -> Course:
    """Train by SGD with the rate whose validation loss is least on problems of their own."""
    rates = torch.tensor(options["rates"], dtype=torch.float64)
    count = options["num_tests"]
    numbers = [_NEW - 1 - i for i in range(count) for _ in rates]
    tried = draw_problems(*data, objective="validation", numbers=numbers, **kind)
    losses = train_networks(rates.repeat(count), tried, test, **{**run, "num_looks": 1})
    each = losses.judged_losses.view(count, len(rates)).mean(0)
    best = rates[int(each.nan_to_num(float("inf")).argmin())]
    return train_networks(best.expand(count), _new_problems(data, options, kind), test, **run)


def _new_problems(data: Samples, options: Mapping[str, Any], kind: Mapping[str, Any]) -> Problems:
    """Return problems to be tested on, all of whose samples are fitted."""
    numbers = range(_NEW, _NEW + options["num_tests"])
    return draw_problems(*data, objective="training", numbers=numbers, **kind)


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Learn every rule, and train with it."""
    data, test = samples(setting.options, workshop)
    for group in together(parts(setting.options, data), setting.options):
        finish(group, setting.options, data, test, workshop)
    return replace(measure_finished(setting, workshop), earlier=frozenset())


def measure_finished(setting: Setting, workshop: Workshop) -> Outcome:
    """Make the study of those cases of which all parts are there, and say which are not."""
    wanted = parts(setting.options, samples(setting.options, workshop)[0])
    files = {one: _place(one, setting.options, workshop) for one in wanted}
    left_out = dict.fromkeys(one.case for one, file in files.items() if not file.is_file())
    notes = [f"Not run: {_name(case)}." for case in left_out]
    courses_of: dict[Case, dict[str, list[Course]]] = {}
    learned: dict[Case, dict[str, Tensor]] = {}
    devices: list[str] = []
    for one, file in files.items():
        if one.case in left_out:
            continue
        kept = read_tensors(file)
        devices.append(tensor_text(kept["device"]))
        course = Course(Status(True, ""), 0, one.seed, *(kept[name] for name in _COURSE))
        courses_of.setdefault(one.case, {}).setdefault(one.name, []).append(course)
        if one.name != "SGD":
            learned.setdefault(one.case, {}).setdefault(one.name, kept["meta_losses"])
        if skipped := int(kept["skipped"]):
            notes.append(
                f"{_name(one.case)}, {one.name}, rule {one.seed}: {skipped} of "
                f"{len(kept['meta_losses'])} segments were not finite."
            )
    if not courses_of:
        return Outcome({}, notes=tuple(notes))
    notes.append(f"Rules, and SGD of each case: {counted(devices)}.")
    names = ("samples", "noise", "optimiser", "rule", "training accuracy", "test accuracy")
    rows = [
        (*case, name, rule, float(train.mean()), float(tests.mean()), float(tests.std()))
        for case, courses in courses_of.items()
        for name, each in courses.items()
        for rule, (train, tests) in enumerate(
            zip(_last(each, "train"), _last(each, "test"), strict=True)
        )
    ]
    return Outcome(
        _numbers(courses_of, {one.case for one in wanted}),
        (_picture(courses_of, "test"), _picture(courses_of, "train"), _meta_picture(learned)),
        (sheet("accuracies", "Accuracies after the last step", (*names, "spread"), rows),),
        tuple(notes),
        earlier=frozenset(devices),
    )


def _last(courses: Sequence[Course], which: str) -> Tensor:
    """Return the accuracies after the last step (rules, networks)."""
    return torch.stack([getattr(course, f"{which}_accuracies")[:, -1] for course in courses])


def _gap(courses: Courses, other: str = "TbT") -> Tensor:
    """Return by how much TbV is the better on test samples (rules, networks)."""
    return _last(courses["TbV"], "test") - _last(courses[other], "test")


def _over(values: Tensor) -> Measured:
    """Return the mean and its spread: over rules, or over networks where there is one rule."""
    return Measured.over(values.mean(1) if len(values) > 1 else values[0])


def _numbers(courses_of: Mapping[Case, Courses], cases: Iterable[Case]) -> dict[str, Measured]:
    """Return what the claims ask for, as far as the cases were run."""
    sizes = sorted({n for n, _ in cases})
    few, most = sizes[0], sizes[-1]
    measured: dict[str, Measured] = {}
    noisy = {n: courses_of[n, noise] for n, noise in sorted(courses_of) if noise > 0}
    if at := noisy.get(few):
        fits, avoids = (_last(at[name], "train") for name in _OBJECTIVES)
        measured = {
            "thesis.figure5.4b.validation-wins": _over(_gap(at)),
            "thesis.figure5.5.train-fits-noise": _over(fits),
            "thesis.figure5.5.validation-does-not": _over(fits - avoids),
            "thesis.figure5.5.validation-learns": _over(_gap(at, "SGD")),
        }
        if (few, 0.0) in courses_of:
            less = _gap(at) - _gap(courses_of[few, 0.0])
            measured["thesis.figure5.4.noise-decides"] = _over(less)
    if few == most:
        return measured
    if (most, 0.0) in courses_of:
        measured["thesis.figure5.4c.all-clean-equal"] = _over(_gap(courses_of[most, 0.0]))
    if most in noisy:
        measured["thesis.figured.1.all-noisy"] = _over(_gap(noisy[most]))
    if {few, most} <= noisy.keys():
        gaps = [_gap(courses) for courses in noisy.values()]
        rises = [_over(after - before) for before, after in itertools.pairwise(gaps)]
        measured["thesis.figured.3.gap-shrinks"] = max(rises, key=lambda rise: rise.ours)
    return measured


def _name(case: Case) -> str:
    n, noise = case
    return f"{n} samples, {noise:.0%} noise" if noise else f"{n} samples, no noise"


def _picture(courses_of: Mapping[Case, Courses], which: str) -> Picture:
    panels, ends = [], [1.0]
    for index, (case, courses) in enumerate(courses_of.items()):
        marks: list[Mark] = []
        for name, each in courses.items():
            steps = rounded(each[0].steps.double())
            rules = torch.stack([getattr(c, f"{which}_accuracies").mean(0) for c in each])
            mean, sd = rules.mean(0), rules.std(0, correction=min(1, len(rules) - 1))
            if len(rules) > 1:
                marks.append(Band(steps, rounded(mean - sd), rounded(mean + sd), _TINTS[name]))
            label = name if index == 0 else None
            marks.append(Line(steps, rounded(mean), _TINTS[name], label))
            ends += (mean - sd).tolist() + (mean + sd).tolist()
        panels.append((marks, _name(case)))
    limits = (round(min(ends) - 0.02, 3), round(max(ends) + 0.02, 3))  # alike, to be compared
    y = Axis(f"{which} accuracy", limits=limits)
    figures = {"test": "figures5-4-and-d", "train": "figure5-5"}
    title = "Accuracy on test samples" if which == "test" else "Accuracy on the samples fitted"
    return Picture(
        figures[which],
        title,
        tuple(Panel(marks, Axis("step"), y, name) for marks, name in panels),
        shows=_words(courses_of, which),
    )


def _words(courses_of: Mapping[Case, Courses], which: str) -> str:
    """Say what was measured, and nothing that another run could belie."""
    sentences = []
    for case, courses in courses_of.items():
        if which == "test":
            gap = _over(_gap(courses))
            spread = "" if gap.spread is None else f" ± {gap.spread:.3f}"
            sentences.append(f"{gap.ours:+.3f}{spread} ({_name(case)})")
        elif case[1] > 0:
            each = [f"{name} {_last(of, 'train').mean():.2f}" for name, of in courses.items()]
            sentences.append(f"{', '.join(each)} ({_name(case)})")
    first = {
        "test": "Accuracy of TbV less that of TbT after the last step: ",
        "train": "Training accuracies after the last step, where labels are noisy: ",
    }
    many = len(next(iter(courses_of.values()))["TbT"])
    means = f" Means over {many} rules of each kind; bands: a standard deviation over rules."
    return f"{first[which]}{'; '.join(sentences) or 'none'}.{means if many > 1 else ''}"


def _meta_picture(learned: Mapping[Case, Mapping[str, Tensor]]) -> Picture:
    panels = []
    for index, (case, curves) in enumerate(learned.items()):
        marks: list[Mark] = []
        for name, values in curves.items():
            marks += _middle(values, _TINTS[name], name if index == 0 else None)
        # The first few segments are millions of times as large.
        ends = [y for mark in marks if isinstance(mark, Line) for y in mark.y if y > 0.0]
        limits = (0.5 * min(ends), 4.0 * max(ends)) if ends else None
        upright = Axis("meta-objective", log=True, limits=limits)
        panels.append(Panel(marks, Axis("segment"), upright, _name(case)))
    return Picture(
        "meta-objectives",
        "The meta-objective while rules are learned",
        tuple(panels),
        shows="Of the first rule of each kind: medians over a hundredth of the segments; bands: "
        "four fifths of them. New runs begin with new weights, so segments differ much.",
    )


def _middle(values: Tensor, colour: str, label: str | None) -> list[Mark]:
    """Return the median of each hundredth of the values, and a band that has four fifths."""
    finite = values.isfinite()
    if not finite.any():
        return []
    places, values = torch.arange(1.0, len(values) + 1.0)[finite], values[finite].double()
    count = min(_WINDOWS, len(values))
    x = rounded(torch.stack([group.mean() for group in places.tensor_split(count)]))
    levels = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    low, middle, high = torch.stack([p.quantile(levels) for p in values.tensor_split(count)]).T
    band = Band(x, rounded(low), rounded(high), colour)
    return [band, Line(x, rounded(middle), colour, label)]


STUDY = Study.of("thesis-stepsize-learned", measure)
