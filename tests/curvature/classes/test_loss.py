"""All that needs classes refuses other losses in the same words, and the words are true."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import eigenscape as es
from eigenscape.errors import UnsupportedModelError
from eigenscape.structure import class_span
from eigenscape_papers.papyan import backpropagated_errors

CALLS: dict[str, Callable[[es.EmpiricalRisk], object]] = {
    "ClassGradients": es.ClassGradients,
    "class_span": class_span,
    "ClassKronecker": lambda risk: es.ClassKronecker(risk, "0"),
    "backpropagated_errors": lambda risk: backpropagated_errors(risk, "0"),
}
X = torch.arange(15.0, dtype=torch.float64).view(5, 3).sin()
LABELS = torch.tensor([0, 1, 1, 0, 1])
PASS = r"Pass `CrossEntropy\(\)` or `torch.nn.CrossEntropyLoss\(\)`"


class Own(nn.Module):
    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(z, y)


def network(outputs: int = 2) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (F.cross_entropy, f"got the function `cross_entropy`. {PASS}"),
        (lambda z, y: F.cross_entropy(z, y), rf"got the function `<lambda>`. {PASS}"),
        (functools.partial(F.cross_entropy, label_smoothing=0.1), "got the function `cross_entr"),
        (nn.NLLLoss(), f"got NLLLoss. {PASS}.*a model that returns logits"),
        (Own(), f"got Own. {PASS}"),
        (es.SquaredError(), "got SquaredError. `GaussNewton` and `KroneckerHessian` know no"),
        (es.BinaryCrossEntropy(), r"got BinaryCrossEntropy. Of one logit z return logits \(0, z\)"),
    ],
)
def test_refusals_name_the_loss_and_another(loss: Any, words: str, call: str) -> None:
    indices = not isinstance(loss, es.SquaredError | es.BinaryCrossEntropy)
    y = LABELS if indices else F.one_hot(LABELS).double()
    risk = es.EmpiricalRisk(network(), loss, (X, y))
    with pytest.raises(UnsupportedModelError, match=rf"`{call}\(risk.*{words}"):
        CALLS[call](risk)


@pytest.mark.parametrize("call", CALLS)
def test_what_is_advised_is_taken(call: str) -> None:
    for loss in (es.CrossEntropy(), nn.CrossEntropyLoss()):
        CALLS[call](es.EmpiricalRisk(network(), loss, (X, LABELS)))


def test_one_logit_is_two() -> None:
    class Two(nn.Module):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Tensor:
            z = self.net(x)
            return torch.cat([torch.zeros_like(z), z], 1)

    net = network(1)
    one = es.EmpiricalRisk(net, es.BinaryCrossEntropy(), (X, LABELS[:, None].double()))
    two = es.EmpiricalRisk(Two(net), es.CrossEntropy(), (X, LABELS))
    torch.testing.assert_close(
        es.GaussNewton(two).to_dense(), es.GaussNewton(one).to_dense(), rtol=1e-12, atol=1e-15
    )
