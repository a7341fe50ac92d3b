"""The course of a training."""

import math
from typing import Any

from eigenscape.records import SERIES, Axis, Line, Mark, Panel, Picture, numbers, table_of


def training_picture(training: Any) -> Picture:
    """Draw losses and accuracies over epochs, one curve a seed.

    Args:
        training: A record with `seeds` and curves of shape (epochs, seeds).

    Returns:
        The picture.
    """
    panels = []
    for what, log in (("loss", True), ("accuracy", False)):
        marks: list[Mark] = []
        positive = True
        for split, colour in (("train", SERIES[0]), ("test", SERIES[1])):
            curve = getattr(training, f"{split}_{what}", None)
            if curve is None or not curve.numel():
                continue
            rows = curve.detach().cpu().double().reshape(curve.shape[0], -1)
            positive = positive and bool((rows > 0).any())
            epochs = [float(i) for i in range(1, len(rows) + 1)]
            for column in range(rows.shape[1]):
                label = split if column == 0 else None
                seed = training.seeds[column] if column < len(training.seeds) else column
                # Epochs without an evaluation are NaN, and a curve goes from known to known.
                known = [
                    (x, y)
                    for x, y in zip(epochs, numbers(rows[:, column]), strict=True)
                    if math.isfinite(y)
                ]
                group = f"{split}, seed {seed}"
                x, y = [x for x, _ in known], [y for _, y in known]
                marks.append(Line(x, y, colour, label, group=group))
        if marks:
            panels.append(
                Panel(marks, Axis("epoch", whole=True), Axis(what, log=log and positive), what)
            )
    return Picture("training", "Training", panels, table_of(training))
