"""Wu-2020 Tables 6, 7, 8, first layers: which pixels did the networks see?

Of a first layer E[x]E[x]ᵀ and Σ depend on the images alone, not on training. So the tables' numbers
say how images were normalised, which no text does.
"""

from typing import Any

from eigenscape.analyses import autocorrelation
from eigenscape.data import load
from eigenscape.losses import CrossEntropy
from eigenscape.models import build
from eigenscape.report import Axis, Panel, Picture
from eigenscape.risk import EmpiricalRisk
from eigenscape.studies._draw import spectrum
from eigenscape.studies._tables import sheet
from eigenscape.studies.claim import Claim, Measured
from eigenscape.studies.study import Outcome, Setting, Study
from eigenscape.studies.workshop import Workshop

_WHY = "All printed digits; nothing random is in it."


def _claim(name: str, where: str, says: str, theirs: float, digits: int) -> Claim:
    half = 0.51 * 10.0**-digits
    return Claim(
        f"wu.2020.{name}",
        f"Wu-2020 {where}",
        says,
        f"{theirs:.{digits}f}",
        low=theirs - half,
        high=theirs + half,
        why=_WHY,
        scales=("paper",),
    )


_RATIO = "‖E[x]E[x]ᵀ‖/‖Σ‖ of the first layer"
_INNER = "|v₁ᵀÊ[x]| of the first layer"
_CLAIMS = (
    _claim("table6.mnist-half", "Table 6, F-200²", f"{_RATIO}, MNIST in −1 … 1", 25.142, 3),
    _claim("table6.mnist-unit", "Table 6, T-600", f"{_RATIO}, MNIST in 0 … 1", 6.857, 3),
    _claim("table6.cifar10-unit", "Table 6, LeNet5", f"{_RATIO}, CIFAR-10 in 0 … 1", 5.474, 3),
    _claim("table7.mnist-half", "Table 7, F-200²", f"{_INNER}, MNIST in −1 … 1", 0.9999, 4),
    _claim("table7.mnist-unit", "Table 7, T-600", f"{_INNER}, MNIST in 0 … 1", 0.9992, 4),
    _claim("table7.cifar10-unit", "Table 7, LeNet5", f"{_INNER}, CIFAR-10 in 0 … 1", 0.9999, 4),
    _claim("table8.cifar10-common", "Table 8, LeNet5-BN", f"{_RATIO}, CIFAR-10, common", 0.020, 3),
    _claim("table8.inner-common", "Table 8, LeNet5-BN", f"{_INNER}, CIFAR-10, common", 0.9675, 4),
)
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
            less, over = (data.inputs.new_tensor(part)[:, None, None] for part in (shift, scale))
            pair = ((data.inputs - less) / over, data.targets)
            found = autocorrelation(EmpiricalRisk(network, CrossEntropy(), pair), layer)
            inner = found.alignment**0.5
            rows.append((name, how, found.dominance, inner, found.ratio))
            panels.append(
                Panel(
                    [spectrum(found.values[:20].clamp_min(0), "hessian", None)],
                    Axis("index", whole=True),
                    Axis("eigenvalue of E[xxᵀ]", log=True),
                    f"{name}, {how}",
                )
            )
            ids = _IDS.get((name, how), ())
            for claim, value in zip(ids, (found.dominance, inner), strict=False):
                measured[f"wu.2020.{claim}"] = Measured(value)
    names = ("data", "normalised", "‖E[x]E[x]ᵀ‖/‖Σ‖", "|v₁ᵀÊ[x]|", "λ₁/λ₂")
    picture = Picture(
        "inputs",
        "Eigenvalues of E[xxᵀ] of the first layer, under three normalisations",
        tuple(panels),
        shows="What a first layer sees does not depend on training, only on how pixels are scaled.",
    )
    table = sheet("inputs", "Every normalisation", names, rows)
    return Outcome(measured, (picture,), (table,))


STUDY = Study(
    name="wu-inputs",
    paper="Wu",
    where="Wu-2020 Tables 6, 7, 8, first layers",
    title="Which pixels did the networks of the paper see?",
    settings={
        "laptop": Setting(options={"data": {"digits": "F-8"}}),
        "paper": Setting(options={"data": {"mnist": "F-8", "cifar10": "LeNet5"}}),
    },
    measure=measure,
    claims=_CLAIMS,
    own=False,
)
