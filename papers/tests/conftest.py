"""Small networks trained once for all studies, and every study run on them once.

`block` and `inputs_of` know nothing of the package's operators: the numbers of studies are worked
out again with them.
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from eigenscape_papers.ensemble import SGD, Recipe
from eigenscape_papers.runner import (
    Cast,
    Networks,
    Setting,
    Study,
    StudyResult,
    Workshop,
    run_study,
)
from eigenscape_papers.studies import STUDIES

RECIPE = Recipe(epochs=2, batch_size=20, optimizer=SGD(0.1))
# Unequal sizes everywhere: 64 inputs, 12 hidden units, 10 classes.
TINY = Cast("F-12^2", "digits", RECIPE, (0, 1), samples=100, keep_epochs=(1,))
TINY_BN = dataclasses.replace(TINY, model="F-12^2-BN", keep_epochs=())
TINY_RANDOM = dataclasses.replace(TINY, seeds=(0,), labels="random", keep_epochs=())
TINY_CONV = dataclasses.replace(TINY, model="SmallConv-4-6", keep_epochs=())
THEORY = {
    "widths": (20, 40),
    "num_classes": 3,
    "num_samples": 512,
    "num_seeds": 2,
    "decoupling": (24, 60),
}
# Options of studies without networks of a cast.
SMALL = {
    "papyan-mixture": {
        "cases": ((4, 3, 2.0, None), (5, 4, 1.0, 0.3)),
        "num_inputs": 6,
        "num_classes": 3,
        "signals": (1.0, 2.0, 3.0),
        "shown": 2.0,
        "per_class": 300,
        "sizes": (90, 900, 9000),
        "num_seeds": 2,
    },
    "papyan-lanczos": {"spiked": 60, "pareto": (40, 20), "log_steps": 80, "steps": (16, 32)},
    "papyan-attribution": {"num_draws": 0},
    "wu-bounds": {
        "networks": ("T-3",),
        "seeds": (0,),
        "training": {"epochs": 5, "batch_size": 100},
        "optimisation": {"epochs": 12, "batch_size": 300, "learning_rate": 0.05},
        "draws": 60,
    },
    "dong-norms": {
        "num_units": 3,
        "linear": (24, 20, 30),
        "linear_classes": (10, 20, 40),
        "hidden": (24, 20, 30),
        "hidden_classes": (10, 20, 40),
        "num_draws": 10,
    },
    "dong-blocks": {"classes": (3, 12), "dimension": 7, "num_units": 4, "shown": 10},
    "dong-clusters": {
        "num_units": 4,
        "images": (9, 6, 8),
        "inputs": {"dimension": 5, "num_samples": 40},
        "clusters": ((2, (2, 4)), (12, (12, 24))),
    },
    "dong-training": {
        "data": {"dimension": 6, "num_classes": 9, "per_class": 3},
        "num_units": 4,
        "epochs": 20,
        "batch_size": 9,
    },
    "dong-beyond": {
        "fan_out": {
            "n1": (3, 5),
            "n2": (4, 9),
            "C": (3, 8),
            "dimension": 4,
            "num_samples": 20,
            "num_seeds": 2,
        },
        "factors": {
            "depth": (1, 2),
            "width": (4, 5),
            "activation": ("ReLU", "tanh"),
            "loss": ("ce", "mse"),
            "noise": (0.0, 1.0),
            "clusters": (10, 20),
        },
        "usual": {"depth": 1, "width": 5},
        "clustered": {"dimension": 6, "num_classes": 10, "num_samples": 40},
        "samples": 40,
        "num_seeds": 2,
        "epochs": 2,
        "num_products": 400,
        "vocabulary": {
            "model": "GPT-1x4x2",
            "tokens": ((2, False), (3, True)),
            "samples": 3,
            "num_seeds": 1,
            "num_products": 60,
        },
    },
    "dong-networks": {
        "num_products": 150,
        "dense": 1100,
        "transformer": {
            "model": "GPT-1x4x2",
            "data": "digit-tokens",
            "samples": 6,
            "epochs": 2,
            "learning_rate": 1e-3,
            "num_seeds": 1,
        },
    },
    "dong-binary": {"num_units": 5, "num_seeds": 2},
    "dong-spectra": {
        "dimension": 30,
        "num_classes": 4,
        "num_units": 3,
        "ratios": (0.5, 3.0),
        "law": {"num_points": 160, "num_samples": 64},
    },
    "thesis-coding-recovery": {
        "dimension": 11,
        "noise": 0.1,
        "num_atoms": 8,
        "sparsity": 2,
        "num_samples": 40,
        "epochs": 3,
        "learned": (8, 16, 40),
        "dimensions": (8, 12),
        "noises": (0.01, 0.1),
        "num_seeds": 2,
    },
    "thesis-coding-theory": {
        "dimension": 7,
        "num_atoms": 5,
        "num_samples": 300,
        "num_masked": 2000,
    },
    "thesis-anchor-fit": {
        "num_contexts": 400,
        "model": "GPT-1x8x2",
        "samples": 8,
        "epochs": 1,
        "windows": 4,
    },
    "thesis-stepsize-quadratic": {"num_seeds": 1, "num_meta_steps": 150},
    "thesis-stepsize-tasks": {
        "dimension": 24,
        "num_tasks": 12,
        "noises": (0.5, 1.0, 2.0),
        "shares": (0.5, 4.0),
        "small": 16,
        "num_small": 12,
        "stochastic": 8,
        "passes": 60,
    },
    "thesis-stepsize-learned": {
        "hidden": (5,),
        "widths": (4,),
        "cases": ((30, 0.0), (30, 0.2), (60, 0.0), (60, 0.2)),
        "learning": {
            "num_problems": 2,
            "num_trajectories": 1,
            "segments": (2, 0.0),
            "lengths": (3, 0.0),
        },
        "few": {},
        "num_rules": 3,
        "num_tests": 2,
        "steps": 6,
        "looks": 3,
        "rates": (0.1, 0.5),
    },
    "thesis-anchor-transfer": {"num_contexts": 800, "disturbances": (0.2, 0.4), "num_seeds": 2},
}


def shrunk(setting: Setting) -> Setting:
    """Return a setting with small networks in the place of its own."""
    casts = []
    for cast in setting.casts:
        stem = TINY_CONV if cast.model.startswith("SmallConv") else TINY
        tiny = TINY_BN if cast.model.endswith("-BN") else stem
        tiny = TINY_RANDOM if cast.labels == "random" else tiny
        model = "F-8^2" if cast.model == "F-24^2" else tiny.model
        casts.append(dataclasses.replace(tiny, model=model, seeds=cast.seeds[: len(tiny.seeds)]))
    options = {
        name: 15 if name == "num_pairs" else value for name, value in setting.options.items()
    }
    return Setting(tuple(casts), options | (THEORY if "widths" in options else {}), setting.note)


def block(networks: Networks, seed: int, *names: str, epoch: int | None = None) -> Tensor:
    """Return the Hessian of the loss with respect to some parameters, by double backward.

    That of a layer's bias is E[M]: every sample's output moves with it.
    """
    model = networks.model(seed, epoch)
    loss = cross_entropy(model(networks.data.inputs), networks.data.targets)
    chosen = [dict(model.named_parameters())[name] for name in names]
    slopes = torch.autograd.grad(loss, chosen, create_graph=True)
    rows = [
        torch.autograd.grad(entry, chosen, retain_graph=True)
        for slope in slopes
        for entry in slope.reshape(-1)
    ]
    H = torch.stack([torch.cat([part.reshape(-1) for part in row]) for row in rows])
    return (H + H.T) / 2


def inputs_of(networks: Networks, seed: int, layer: str, epoch: int | None = None) -> Tensor:
    """Return what goes into a linear layer (samples, n)."""
    model, seen = networks.model(seed, epoch), []
    hook = model.get_submodule(layer).register_forward_pre_hook(lambda _, args: seen.append(args))
    with torch.no_grad():
        model(networks.data.inputs)
    hook.remove()
    return seen[0][0]


def top_vectors(matrix: Tensor, count: int) -> Tensor:
    """Return the eigenvectors of the largest eigenvalues, largest first, as columns."""
    return torch.linalg.eigh(matrix).eigenvectors.flip(1)[:, :count]


def numbers_of(result: StudyResult) -> dict[str, float]:
    """Return what a study measured, by claim."""
    return {f.id: f.ours for f in result.findings if f.ours is not None}


@pytest.fixture(scope="session")
def _float64_for_all() -> Iterator[None]:
    """Set the dtype that tests have: what is made for the session is made before theirs is set."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory, _float64_for_all: None) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("shop"), torch.device("cpu"))


@pytest.fixture(scope="session")
def tiny(shop: Workshop) -> Networks:
    return shop.networks(TINY)


def shrunk_study(name: str) -> Study:
    """Return a study whose scales are its laptop scale, and smaller still."""
    study = STUDIES[name]
    setting = shrunk(study.settings["laptop"])
    options = {**setting.options, **SMALL.get(name, {})}
    setting = dataclasses.replace(setting, options=options)
    return dataclasses.replace(study, settings=dict.fromkeys(study.settings, setting))


@pytest.fixture(scope="session")
def small_study() -> Callable[[str], Study]:
    return shrunk_study


@pytest.fixture(scope="session")
def ran(shop: Workshop, small_study: Callable[[str], Study]) -> Callable[[str], StudyResult]:
    """Run a study on small networks, or remember it."""
    known: dict[str, StudyResult] = {}

    def run(name: str) -> StudyResult:
        if name not in known:
            known[name] = run_study(small_study(name), shop)
        return known[name]

    return run


@pytest.fixture
def empty_shop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path / "shop", torch.device("cpu"))
