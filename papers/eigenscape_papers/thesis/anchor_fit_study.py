"""Thesis Figs 3.1 to 3.3, B.1 to B.4, Tables 3.1, B.2: is log Z_bulk linear in the state?

Three models with known answers (an anchor, none, two), and small transformers that are trained here
on a text, where it is at hand: read as characters and as pairs of them, with a tied head as GPT-2
has, and without.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from eigenscape.errors import DataError
from eigenscape.records import Axis, Bars, Line, Mark, Panel, Picture, Points
from eigenscape_papers.datasets import DataSet, load
from eigenscape_papers.ensemble import Adam, Recipe
from eigenscape_papers.networks import build
from eigenscape_papers.representations import (
    AnchorTable,
    EmbeddingDiagnostics,
    LogLinear,
    anchor_table,
    embedding_diagnostics,
    log_bulk_partitions,
    output_states,
)
from eigenscape_papers.runner import (
    SERIES,
    Cast,
    Measured,
    Outcome,
    Own,
    Setting,
    Sheet,
    Study,
    Workshop,
    curve,
    rounded,
    sheet,
)

_TOP = {"pairs": (100, 300), "characters": (10, 30)}
_HEADS = ("tied", "untied, small", "untied")
_NOT_DRAWN = ("untied, small", "characters, untied")  # in the figure of errors; no colours are left
_BINS = 40


@dataclass(frozen=True, eq=False)
class _Reading:
    """One trained model: its fits by size of the top, its words, and log Z of its contexts."""

    loss: float
    table: AnchorTable
    shape: EmbeddingDiagnostics
    log_parts: Tensor  # log Z and log Z_bulk (N, 2)
    num_words: int


def synthetic(kind: str, *, num_contexts: int, num_words: int, seed: int = 0) -> LogLinear:
    """Draw a model with a known answer.

    Args:
        kind: "planted", "unplanted", or "two": states of two kinds, each with its own words, so
            that log Z rises along the states of one kind and falls along those of the other.
        num_contexts: N.
        num_words: n.
        seed: Fixes it.

    Returns:
        The model. The seventh entry of a state is 1; with "two", the eighth tells the kinds apart.
    """
    draw = torch.Generator().manual_seed(seed)
    free = torch.randn(num_contexts, 6, generator=draw, dtype=torch.float64)
    words = torch.randn(num_words, 6, generator=draw, dtype=torch.float64)
    one = torch.ones(num_contexts, 1, dtype=torch.float64)
    if kind == "two":
        # Each kind has its own half of the words, and these point the other way. Both halves are
        # alike otherwise: what one vector could tell of the kind says nothing about log Z.
        second, half = (
            (2.0 * (torch.arange(size) % 2) - 1).double().unsqueeze(1)
            for size in (num_contexts, num_words)
        )
        near = (0.05 * words + 1.0) * half
        return LogLinear(
            torch.cat([free, one, 40 * second], dim=1),
            torch.cat([near, torch.zeros_like(half), half], dim=1),
        )
    spread = 0.05 * words + 1.0 if kind == "planted" else words
    return LogLinear(
        torch.cat([free, one], dim=1), torch.cat([spread, torch.zeros_like(words[:, :1])], dim=1)
    )


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Fit anchors to the models with known answers, and to models of a text."""
    options = setting.options
    tables, measured = _known_answers(options)
    pictures: list[Picture] = []
    sheets: list[Sheet] = []
    notes: tuple[str, ...] = ()
    try:
        text = load("characters", split="train", folder=workshop.data_dir)
    except DataError as error:
        notes = (f"The models of text were left out: {error}",)
    else:
        readings = {
            (kind, head): _read(options, data, head, workshop)
            for kind, data in (("pairs", pairs(text)), ("characters", text))
            for head in _HEADS
        }
        measured |= _of_pairs(readings["pairs", "tied"])
        measured |= _of_characters(readings["characters", "tied"])
        tables |= {
            f"{kind}, {head}": of_kind[0].table for (kind, head), of_kind in readings.items()
        }
        pictures = [_shapes(readings), _histograms(readings)]
        sheets = [_heads(readings)]
    rows = [
        (name, k, table.mse[i], table.variance[i], table.mean[i])
        for name, table in tables.items()
        for i, k in enumerate(table.num_top)
    ]
    names = ("model", "left out", "mse", "variance of log Z", "mean of log Z")
    fits = sheet("anchors", "Errors of anchors", names, rows)
    return Outcome(measured, (_curves(tables), *pictures), (fits, *sheets), notes)


def pairs(text: DataSet) -> DataSet:
    """Read a text two characters at a time.

    Args:
        text: Windows of characters that follow each other.

    Returns:
        Windows of as many words, half as many of them; a word is a pair of characters that occurs.

    Examples:
        >>> windows = torch.tensor([[0, 1, 0, 1], [2, 2, 0, 1], [0, 1, 0, 0]])
        >>> found = pairs(DataSet("x", windows, windows, 3))
        >>> found.inputs.tolist(), found.targets.tolist(), found.num_classes  # 00, 01, 22
        ([[1, 1, 2, 1]], [[1, 2, 1, 1]], 3)
    """
    stream, T = text.inputs.reshape(-1), text.inputs.shape[1]
    both = stream[: len(stream) // 2 * 2].reshape(-1, 2)
    numbers = both[:, 0] * (text.num_classes or 0) + both[:, 1]
    words, tokens = torch.unique(numbers, return_inverse=True)
    end = (len(tokens) - 1) // T * T
    inputs, targets = tokens[:end].reshape(-1, T), tokens[1 : end + 1].reshape(-1, T)
    return DataSet(f"pairs of {text.name}", inputs, targets, len(words))


def make_network(name: str, head: str, data: DataSet, seed: int) -> nn.Module:
    """Build a GPT with one of three heads.

    Args:
        name: Of `models.build`, without a tied head.
        head: "tied", "untied", or "untied, small": its first weights as small as the embedding's.
        data: Gives context and vocabulary.
        seed: Fixes the weights.

    Returns:
        The network.
    """
    net = build(
        f"{name}-tied" if head == "tied" else name,
        input_shape=data.input_shape,
        num_classes=data.num_classes or 0,
        seed=seed,
        init="xavier",
    )
    if head == "untied, small":
        weight, small = (
            net.get_parameter(f"{name_of_layer}.weight") for name_of_layer in ("head", "embed")
        )
        with torch.no_grad():
            weight.mul_(small.std() / weight.std())
    return net


def _known_answers(
    options: Mapping[str, Any],
) -> tuple[dict[str, AnchorTable], dict[str, Measured]]:
    sizes = {"num_contexts": options["num_contexts"], "num_words": options["num_words"]}
    tables = {}
    for kind in ("planted", "unplanted"):
        model = synthetic(kind, **sizes)
        tables[kind] = anchor_table(model.states, model.embedding, num_top=options["num_top"])
    two = synthetic("two", **sizes)
    for K, name in ((1, "two kinds, one anchor"), (2, "two kinds, two anchors")):
        tables[name] = anchor_table(
            two.states, two.embedding, num_top=options["num_top"], num_anchors=K
        )
    none, one, both = (
        tables[name] for name in ("unplanted", "two kinds, one anchor", "two kinds, two anchors")
    )
    return tables, {
        "thesis.fig3.1.planted": Measured(_share(tables["planted"], 10)),
        "thesis.fig3.1.unplanted": Measured(_share(none, 10)),
        "thesis.fig3.1.unplanted.falls": Measured(_fall(none, 0, none.num_top[-1])),
        "thesis.tableb.2.one-anchor": Measured(_share(one, 0)),
        "thesis.tableb.2.two-anchors": Measured(_share(both, 0)),
    }


def _read(
    options: Mapping[str, Any], data: DataSet, head: str, workshop: Workshop
) -> list[_Reading]:
    """Train the networks of one head, or find them trained, and run them on a part of the text."""
    network = Own(lambda seed: make_network(options["model"], head, data, seed), data)
    # One seed is enough to see what another head does; claims are about the tied one.
    seeds = tuple(range(options["num_seeds"] if head == "tied" else 1))
    recipe = Recipe(
        epochs=options["epochs"], batch_size=options["batch_size"], optimizer=Adam(1e-3)
    )
    name = f"{options['model']}, {head} head"
    cast = Cast(name, data.name, recipe, seeds, samples=options["samples"], own=network)
    networks = workshop.networks(cast)
    tokens = networks.data.inputs[: options["windows"]].long()
    results = []
    for seed in seeds:
        model = output_states(networks.model(seed), tokens, head="head")
        V, words = model.states, model.embedding
        tops = (0, _TOP["pairs" if data.name.startswith("pairs") else "characters"][0])
        results.append(
            _Reading(
                loss=networks.train_loss[seed],
                table=anchor_table(V, words, num_top=options["num_top"], ridge=1e-9),
                shape=embedding_diagnostics(words),
                log_parts=log_bulk_partitions(V, words, tops),
                num_words=len(words),
            )
        )
    return results


def _share(table: AnchorTable, num_top: int) -> float:
    i = table.num_top.index(num_top)
    return table.mse[i] / table.variance[i]


def _fall(table: AnchorTable, num_top: int, more: int) -> float:
    """Return what is left of mse over variance when more words are left out."""
    return _share(table, more) / _share(table, num_top)


def _rank(shape: EmbeddingDiagnostics) -> float:
    return shape.effective_rank / len(shape.singular_values)


def _longest(shape: EmbeddingDiagnostics) -> float:
    return float(shape.norms.max() / shape.norms.median())


def _of_pairs(results: Sequence[_Reading]) -> dict[str, Measured]:
    k, more = _TOP["pairs"]
    tables, shapes = [one.table for one in results], [one.shape for one in results]
    over = Measured.over
    return {
        "thesis.table3.1.pairs.bulk": over([_fall(t, 0, k) for t in tables]),
        "thesis.fig3.1.pairs.falls": over([_fall(t, k, more) for t in tables]),
        "thesis.fig3.3.pairs.linear": over([_share(t, k) for t in tables]),
        "thesis.fig3.2.pairs.rank": over([_rank(shape) for shape in shapes]),
        "thesis.figb.1.pairs.norms": over([_longest(shape) for shape in shapes]),
        "thesis.figb.2.pairs.cosine": over([shape.mean_cosine for shape in shapes]),
    }


def _of_characters(results: Sequence[_Reading]) -> dict[str, Measured]:
    k = _TOP["characters"][0]
    return {
        "thesis.fig3.3.characters.linear": Measured.over([_share(one.table, k) for one in results]),
        "thesis.figb.2.characters.cosine": Measured.over(
            [one.shape.mean_cosine for one in results]
        ),
    }


def _heads(readings: Mapping[tuple[str, str], Sequence[_Reading]]) -> Sheet:
    rows = []
    for (kind, head), results in readings.items():
        k = _TOP[kind][0]
        for seed, one in enumerate(results):
            numbers = (_share(one.table, k), one.shape.mean_cosine, _rank(one.shape))
            rows.append((kind, one.num_words, head, seed, one.loss, k, *numbers))
    names = ("text as", "words", "head", "seed", "loss", "left out", "mse / variance", "cosine")
    return sheet(
        "heads", "Vocabulary, head and first weights", (*names, "effective rank / d"), rows
    )


def _curves(tables: Mapping[str, AnchorTable]) -> Picture:
    drawn = {name: table for name, table in tables.items() if not name.endswith(_NOT_DRAWN)}
    sizes = sorted({k for table in drawn.values() for k in table.num_top})
    errors: list[Mark] = []
    shares: list[Mark] = []
    for i, (name, table) in enumerate(drawn.items()):
        tint = SERIES[i]
        x = tuple(float(sizes.index(k)) for k in table.num_top)
        share = [m / v for m, v in zip(table.mse, table.variance, strict=True)]
        errors += [Line(x, rounded(table.mse), tint), Points(x, rounded(table.mse), tint, name)]
        shares += [Line(x, rounded(share), tint), Points(x, rounded(share), tint)]
    across = Axis("most probable words left out", ticks=[(i, str(k)) for i, k in enumerate(sizes)])
    return Picture(
        "anchors",
        "What anchors leave unexplained of log Z_bulk",
        (
            Panel(errors, across, Axis("mse", log=True), "Fig. 3.1"),
            Panel(shares, across, Axis("mse / variance", log=True), "the same for its spread"),
        ),
        shows="Right, near 0 an anchor exists; near 1 the state says nothing linear about it. "
        "Where contexts are of two kinds, one anchor fails and two do not.",
    )


def _shapes(readings: Mapping[tuple[str, str], Sequence[_Reading]]) -> Picture:
    """Draw Figs 3.2, B.1, B.2."""
    values: list[Mark] = []
    norms: list[Mark] = []
    cosines: list[Mark] = []
    drawn = {f"{kind}, {head}": f[0].shape for (kind, head), f in readings.items()}
    for (name, shape), tint in zip(drawn.items(), SERIES, strict=False):
        dashed = name.startswith("characters")
        s = shape.singular_values / shape.singular_values[0]
        values.append(curve(s, tint, name, dashed=dashed))
        norms.append(_density(shape.norms, tint, dashed=dashed))
        cosines.append(_density(shape.cosines, tint, dashed=dashed))
    cosine_words = [f"{name} {shape.mean_cosine:.2f}" for name, shape in drawn.items()]
    return Picture(
        "embedding",
        "The shape of output embeddings",
        (
            Panel(values, Axis("index"), Axis("σ / largest", log=True), "Fig. 3.2"),
            Panel(norms, Axis("length of a word"), Axis("density"), "Fig. B.1"),
            Panel(cosines, Axis("cosine of two words"), Axis("density"), "Fig. B.2"),
        ),
        shows=f"Mean cosines of two words: {'; '.join(cosine_words)}. In a cone they are far "
        "above 0.",
    )


def _histograms(readings: Mapping[tuple[str, str], Sequence[_Reading]]) -> Picture:
    """Draw Figs 3.3, B.3, B.4."""
    panels = []
    for kind, head in (("pairs", "tied"), ("pairs", "untied"), ("characters", "tied")):
        all_words, bulk = readings[kind, head][0].log_parts.unbind(1)
        marks: list[Mark] = [
            _histogram(all_words, "first", "log Z"),
            _histogram(bulk, "second", f"log Z_bulk, without {_TOP[kind][0]}"),
        ]
        panels.append(Panel(marks, Axis("value"), Axis("contexts"), f"{kind}, {head}"))
    return Picture(
        "partitions",
        "Log partition functions over contexts: Figs 3.3, B.3, B.4",
        tuple(panels),
        shows="Both vary from context to context; an anchor tells the second one from the state.",
    )


def _histogram(values: Tensor, colour: str, label: str) -> Bars:
    counts, edges = torch.histogram(values.detach().cpu().double(), bins=_BINS)
    return Bars(rounded(edges), rounded(counts), colour, label)


def _density(values: Tensor, colour: str, *, dashed: bool) -> Line:
    bins = min(_BINS, max(1, len(values) // 5))  # few words make few bars
    counts, edges = torch.histogram(values.detach().cpu().double(), bins=bins, density=True)
    return Line(rounded((edges[1:] + edges[:-1]) / 2), rounded(counts), colour, dashed=dashed)


STUDY = Study.of("thesis-anchor-fit", measure)
