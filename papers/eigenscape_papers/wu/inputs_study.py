"""Wu-2020 Tables 6, 7, 8, first layers: which pixels did the networks see?

Of a first layer E[x]E[x]ᵀ and Σ depend on the images alone, not on training. So the tables' numbers
say how images were normalised, which no text does.
"""

from typing import Any

from eigenscape.analyses import autocorrelation
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from eigenscape_papers.datasets import load
from eigenscape_papers.networks import build
from eigenscape_papers.runner import (
    Measured,
    Outcome,
    Setting,
    Study,
    Workshop,
    picture,
    table,
)
from eigenscape_papers.wu.autocorrelation_study import inputs_panel

_IDS = {
    ("mnist", "half"): ("table6.mnist-half", "table7.mnist-half"),
    ("mnist", "unit"): ("table6.mnist-unit", "table7.mnist-unit"),
    ("cifar10", "unit"): ("table6.cifar10-unit", "table7.cifar10-unit"),
    ("cifar10", "common"): ("table8.cifar10-common", "table8.inner-common"),
}
# Shift and scale of pixels between 0 and 1. "common" are numbers that many scripts for CIFAR-10
# have; the scale is not the standard deviation over all pixels, which is 0.247, 0.243, 0.262, and
# by which the cast of LeNet5-BN is standardised.
_COMMON = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
_SCALES = {"unit": ((0.0,), (1.0,)), "half": ((0.5,), (0.5,)), "common": _COMMON}


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Look at the first layer's input under every normalisation."""
    measured: dict[str, Measured] = {}
    rows: list[tuple[Any, ...]] = []
    panels = []
    for name, model in setting.options["data"].items():
        data = load(name, folder=workshop.data_dir, normalise="unit").to(workshop.device)
        network = build(model, input_shape=data.input_shape, num_classes=10).to(workshop.device)
        layer = next(iter(dict(network.named_children())))
        for how, (shift, scale) in _SCALES.items():
            if len(shift) not in {1, data.input_shape[0]}:
                continue
            less, over = (
                data.inputs.new_tensor(numbers)[:, None, None] for numbers in (shift, scale)
            )
            pair = ((data.inputs - less) / over, data.targets)
            record = autocorrelation(EmpiricalRisk(network, CrossEntropy(), pair), layer)
            inner = record.alignment**0.5
            rows.append((name, how, record.dominance, inner, record.ratio))
            panels.append(inputs_panel(record, "eigenvalue of E[xxᵀ]", f"{name}, {how}"))
            ids = _IDS.get((name, how), ())
            for claim, value in zip(ids, (record.dominance, inner), strict=False):
                measured[f"wu.2020.{claim}"] = Measured(value)
    drawn = picture("wu-inputs.inputs", panels)
    return Outcome(measured, (drawn,), (table("wu-inputs.inputs", rows),))


STUDY = Study.of("wu-inputs", measure)
