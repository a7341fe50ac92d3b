"""What was once answered wrongly without a word is answered rightly now, or refused with words."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import eigenscape as es
from tests.strangers.named_cases import CASES, net
from tests.strangers.oracle import Case, direction, hessian_product, unexpected


@pytest.mark.parametrize("name", CASES)
def test_no_silent_error(name: str) -> None:
    maker, refused = CASES[name]
    assert unexpected(maker, refused) == {}


# --- what is kept is the function's no longer -----------------------------------------------------


class Sloped(nn.Module):
    """A net with a setting that is a plain number."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.slope = net(3, 7, 4), 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.slope * x)


class Negated:
    """Weights whose sign changes through `.data`; sums of their bits hardly do."""

    def __call__(self, model: Sloped, X: Tensor, y: Tensor) -> None:
        for p in model.parameters():
            p.data.neg_()


CHANGES: dict[str, Callable[[Sloped, Tensor, Tensor], object]] = {
    "weights negated": Negated(),
    "weights through NumPy": lambda model, X, y: model.body[0].weight.data.numpy().fill(0.3),
    "another parameter": lambda model, X, y: setattr(
        model.body[2], "bias", nn.Parameter(-y[:4] / 3)
    ),
    "data through NumPy": lambda model, X, y: X.numpy().__imul__(2),
    "data through .data": lambda model, X, y: X.data.mul_(2),
    "targets ignored": lambda model, X, y: y[:5].fill_(-100),
    "a number of the model": lambda model, X, y: setattr(model, "slope", 2.0),
    "another module": lambda model, X, y: model.body.__setitem__(1, nn.GELU()),
    "a hook": lambda model, X, y: model.body[0].register_forward_hook(lambda m, a, out: 2 * out),
    "a weight through .data": lambda model, X, y: model.body[0].weight.data.zero_(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("matrix", ["auto", "graph", "linearised", "layer"])
def test_products_follow_every_change(change: str, matrix: str) -> None:
    model, X, y = Sloped(), torch.randn(12, 3), torch.randint(0, 4, (12,))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.bfloat16())
    risk = es.EmpiricalRisk(model, es.CrossEntropy(), (X, y))
    is_layer = matrix == "layer"
    H: Any = (
        es.LayerHessian(risk, "body.0") if is_layer else es.Hessian(risk, representation=matrix)
    )
    v = direction(H.shape[0]).double()
    before = H @ v
    CHANGES[change](model, X, y)
    case = Case(model, es.CrossEntropy(), (X, y), value=lambda: F.cross_entropy(model(X), y))
    chosen = list(model.parameters())[: 2 if is_layer else None]
    truth = hessian_product(case, chosen, v)
    assert (before - truth).norm() > 1e-3 * truth.norm()
    torch.testing.assert_close(H @ v, truth)


def test_many_changes_of_the_weights_leave_nothing_behind() -> None:
    model, X, y = net(3, 7, 4), torch.randn(12, 3), torch.randint(0, 4, (12,))
    H = es.Hessian(es.EmpiricalRisk(model, es.CrossEntropy(), (X, y)))
    v = torch.ones(H.shape[0])
    sizes = []
    for _ in range(6):
        nn.utils.vector_to_parameters(torch.randn(H.shape[0]), model.parameters())
        H @ v
        sizes.append({name: len(held) for name, held in vars(H).items() if isinstance(held, dict)})
    assert sizes[1:] == sizes[1:2] * 5


# --- the user's surroundings ----------------------------------------------------------------------


def surrounded(name: str) -> Any:
    return {
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
        "cached parametrisations": parametrize.cached,
        "no_grad": torch.no_grad,
        "default float32": lambda: _DefaultDtype(torch.float32),
    }[name]()


class _DefaultDtype:
    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.before = dtype, torch.get_default_dtype()

    def __enter__(self) -> None:
        torch.set_default_dtype(self.dtype)

    def __exit__(self, *error: object) -> None:
        torch.set_default_dtype(self.before)


@pytest.mark.parametrize("where", ["inside", "made inside", "asked inside", "warm inside"])
@pytest.mark.parametrize(
    "surroundings", ["autocast", "cached parametrisations", "no_grad", "default float32"]
)
def test_surroundings_change_nothing(surroundings: str, where: str) -> None:
    layer = parametrizations.orthogonal(nn.Linear(5, 5))
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), layer, nn.Linear(5, 4))
    X, y = torch.randn(12, 3), torch.randint(0, 4, (12,))
    make = lambda: es.Hessian(es.EmpiricalRisk(model, es.CrossEntropy(), (X, y)))
    v = direction(sum(p.numel() for p in model.parameters())).double()
    case = Case(model, None, None, value=lambda: F.cross_entropy(model(X), y))
    truth = hessian_product(case, list(model.parameters()), v)
    if where == "inside":
        with surrounded(surroundings):
            Hv = make() @ v
    elif where == "made inside":
        with surrounded(surroundings):
            H = make()
        Hv = H @ v
    else:
        H = make()
        with surrounded(surroundings):
            Hv = H @ v
        if where == "warm inside":  # what was kept inside is used outside
            Hv = H @ v
    torch.testing.assert_close(Hv, truth, rtol=1e-9, atol=1e-12)


# --- exact where it is promised -------------------------------------------------------------------


class Heads(nn.Module):
    """Classes at several places of a sample: of words, or of pixels."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.body, self.head, self.shape = nn.Linear(3, 6), nn.Linear(6, 36), shape

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x))).reshape(len(x), *self.shape, 4)


@pytest.mark.parametrize("shape", [(9,), (3, 3)])
def test_nothing_is_drawn_for_several_targets_a_sample(shape: tuple[int, ...]) -> None:
    model, X, y = Heads(shape), torch.randn(12, 3), torch.randint(0, 4, (12, *shape))
    risk = es.EmpiricalRisk(model, es.CrossEntropy(), (X, y))
    one, other = (es.KroneckerHessian(risk, "head", seed=seed) for seed in (0, 1))
    v = torch.randn(one.shape[0])
    torch.testing.assert_close(one @ v, other @ v, rtol=0, atol=0)


def test_a_checkpoint_of_other_weights_is_not_taken(tmp_path: Any) -> None:
    model, X, y = net(3, 7, 4).float(), torch.randn(12, 3).float(), torch.randint(0, 4, (12,))

    def density() -> es.SpectralDensity:
        H = es.Hessian(es.EmpiricalRisk(model, es.CrossEntropy(), (X, y)))
        return es.spectral_density(H, num_steps=6, num_probes=1, checkpoint=tmp_path)

    before = density()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.01)
    fresh = copy.deepcopy(model)
    try:
        after = density()
    except es.errors.EigenscapeError:  # it says that the checkpoint is another one's
        return
    H = es.Hessian(es.EmpiricalRisk(fresh, es.CrossEntropy(), (X, y)))
    own = es.spectral_density(H, num_steps=6, num_probes=1)
    assert (after.nodes == own.nodes).all()
    assert not (after.nodes == before.nodes).all()
