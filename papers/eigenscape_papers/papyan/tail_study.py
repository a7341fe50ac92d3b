"""Papyan Fig. 16: the eigenvalues of E on test data fall off like a power.

The range of the fit is part of the answer, and the paper does not print it. Here it is what lies
between a thousandth and a third of the largest |λ|; the table has others.
"""

from collections.abc import Mapping
from typing import Any

import torch

from eigenscape.errors import InvalidArgumentError
from eigenscape.linalg import SpectralDensity, spectral_density
from eigenscape.operator import Dense
from eigenscape.records import Axis, Line, Mark, Panel, Picture, Points, Ticker
from eigenscape_papers.papyan import networks as casts
from eigenscape_papers.papyan.power_tail import PowerTail, power_tail
from eigenscape_papers.papyan.whole_spectra import held_out_risk, hessian_parts, seen_risk
from eigenscape_papers.runner import (
    Measured,
    Networks,
    Outcome,
    Setting,
    Study,
    Workshop,
    over_networks,
    picture,
    rounded,
    table,
)

_RANGE = (1e-3, 1 / 3)
_RANGES = (_RANGE, (1e-4, 1 / 3), (1e-3, 1e-1), (1e-2, 1.0))


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Fit power laws to E of every network, on test data where there are any."""
    numbers: list[dict[str, float]] = []
    rows: list[tuple[object, ...]] = []
    pictures: list[Picture] = []
    products = 0
    best = [workshop.networks(cast) for cast in setting.casts]
    pairs = [(networks, seed) for networks in best for seed in networks.cast.seeds]
    ticker = Ticker(workshop.progress, "spectra of E", len(pairs))
    for done, (networks, seed) in enumerate(pairs):
        ticker.tick(done)
        spectrum = _spectrum(workshop, networks, seed, setting.options)
        products += spectrum.num_products if isinstance(spectrum, SpectralDensity) else 0
        fits = {scale: _fit(spectrum, _RANGE, scale) for scale in ("linear", "log")}
        numbers.append(_numbers(fits))
        rows += _rows(networks, seed, spectrum)
        if seed == networks.cast.seeds[0]:
            pictures.append(_picture(networks, fits, len(pictures)))
    measured = over_networks(numbers)
    ranges = table("papyan-tail.fits", rows)
    return Outcome(measured, tuple(pictures), (ranges,), _notes(measured), products)


def _notes(measured: Mapping[str, Measured]) -> tuple[str, ...]:
    """Say the exponents also where they are not judged."""
    exponents = [measured.get(f"papyan.fig16{figure}.exponent") for figure in "ab"]
    if any(one is None for one in exponents):
        return ()
    a, b = (f"{one.ours:.2f}" for one in exponents if one is not None)
    return (f"Exponents here are {a} along λ and {b} along log|λ|; the paper has 2.7 and 2.2.",)


def _spectrum(
    workshop: Workshop, networks: Networks, seed: int, options: Mapping[str, Any]
) -> torch.Tensor | SpectralDensity:
    """Return all eigenvalues of E, or its density; on training data if there are no other."""
    samples = options["samples"]
    risk = held_out_risk(workshop, networks, seed, samples) or seen_risk(networks, seed, samples)
    E = hessian_parts(risk)["E"]
    if isinstance(E, Dense):
        values: torch.Tensor = torch.linalg.eigvalsh(E.to_dense()).cpu()
        return values
    return spectral_density(E, num_steps=options["num_steps"], num_probes=options["num_probes"])


def _fit(
    spectrum: torch.Tensor | SpectralDensity, ends: tuple[float, float], scale: str
) -> PowerTail | None:
    values = spectrum if isinstance(spectrum, torch.Tensor) else spectrum.nodes.flatten()
    largest = float(values.abs().max())
    try:
        return power_tail(spectrum, low=ends[0] * largest, high=ends[1] * largest, scale=scale)
    except InvalidArgumentError:  # a network so small that the range is empty
        return None


def _numbers(fits: dict[str, PowerTail | None]) -> dict[str, float]:
    numbers = {}
    for figure, scale in (("a", "linear"), ("b", "log")):
        fit = fits[scale]
        if fit is not None:
            numbers[f"papyan.fig16{figure}.exponent"] = fit.both.exponent
            numbers[f"papyan.fig16{figure}.straight"] = fit.both.r_squared
            if scale == "log" and fit.positive and fit.negative:
                numbers["papyan.fig16.symmetric"] = fit.positive.mass / fit.negative.mass
    return numbers


def _rows(
    networks: Networks, seed: int, spectrum: torch.Tensor | SpectralDensity
) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for ends in _RANGES:
        for scale in ("linear", "log"):
            fit = _fit(spectrum, ends, scale)
            if fit is not None:
                sides = [side.exponent if side else None for side in (fit.positive, fit.negative)]
                b = fit.both
                start = (networks.cast.label, seed, scale, f"{ends[0]:g} to {ends[1]:.2g}")
                rows.append((*start, b.exponent, b.stderr, b.r_squared, b.mass, *sides))
    return rows


def _picture(networks: Networks, fits: dict[str, PowerTail | None], index: int) -> Picture:
    panels = []
    titles = {"linear": "along λ (Fig. 16a)", "log": "along log|λ| (Fig. 16b)"}
    for scale, fit in fits.items():
        marks: list[Mark] = []
        if fit is not None:
            for side, colour, name in (
                (fit.positive, "second", "λ > 0"),
                (fit.negative, "first", "λ < 0"),
            ):
                if side is not None:
                    x, y = rounded(side.places, 4), rounded(side.density, 4)
                    marks.append(Points(x, y, colour, name, hollow=colour == "first"))
            b = fit.both
            line = b.coefficient * b.places ** (-b.exponent)
            label = f"slope −{b.exponent:.2f}, R² {b.r_squared:.3f}"
            x, y = rounded(b.places, 4), rounded(0.5 * line, 4)  # half of it on either side
            marks.append(Line(x, y, "ink", label, dashed=True))
        axes = Axis("|λ|", log=True), Axis("density", log=True)
        panels.append(Panel(marks, *axes, titles[scale]))
    return picture("papyan-tail.fig16", panels, networks.cast.label, number=index + 1)


STUDY = Study.of("papyan-tail", measure, {"laptop": (casts.SMALL,), "paper": (casts.VGG_TAIL,)})
