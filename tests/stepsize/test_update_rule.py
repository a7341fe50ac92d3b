"""The features, weight by weight and without tensors, and the perceptron over them."""

import math

import pytest
import torch
from torch import Tensor, nn

from eigenscape.errors import InvalidArgumentError
from eigenscape.stepsize import UpdateRule, step_features, weight_features

DECAYS = (0.5, 0.9, 0.99, 0.999, 0.9999)
SCALES = (3, 10, 30, 100, 300, 1000, 3000, 10_000, 300_000)


def plain_features(history: list[list[float]], weights: list[float]) -> list[list[float]]:
    """Return the 22 features of one network, from all its gradients so far, in plain Python."""
    count, rows = len(weights), []
    for i in range(count):
        past = [step[i] for step in history]
        g = past[-1]
        sums = [
            (
                sum((1 - d) * d ** (len(past) - 1 - s) * x for s, x in enumerate(past)),
                sum((1 - d) * d ** (len(past) - 1 - s) * x * x for s, x in enumerate(past)),
            )
            for d in DECAYS
        ]
        roots = [1 / math.sqrt(v + 1e-8) for _, v in sums]
        rows.append([g, weights[i], *(m for m, _ in sums), *(v for _, v in sums)])
        rows[-1] += [g * r for r in roots] + roots
    found = []
    for k in range(22):
        column = [row[k] for row in rows]
        mean = sum(column) / count
        sd = math.sqrt(sum((x - mean) ** 2 for x in column) / count)
        found.append([(x - mean) / sd for x in column])
    return found


def averages(history: Tensor) -> tuple[Tensor, Tensor]:
    """Return m and v (p, 5, n) after gradients (t, p, n)."""
    first = torch.zeros(history.shape[1], 5, history.shape[2])
    second = torch.zeros_like(first)
    for g in history:
        for k, decay in enumerate(DECAYS):
            first[:, k] = decay * first[:, k] + (1 - decay) * g
            second[:, k] = decay * second[:, k] + (1 - decay) * g**2
    return first, second


def test_features_are_those_of_each_weight() -> None:
    torch.manual_seed(0)
    w, history = torch.randn(2, 7), torch.randn(3, 2, 7)
    found = weight_features(w, history[-1], *averages(history))
    assert found.shape == (2, 22, 7)
    for problem in range(2):
        expected = torch.tensor(plain_features(history[:, problem].tolist(), w[problem].tolist()))
        torch.testing.assert_close(found[problem], expected, rtol=1e-6, atol=1e-6)


def test_features_keep_their_size_in_float32() -> None:
    torch.manual_seed(1)
    w, history = torch.randn(1, 50), 1e-9 * torch.randn(2, 1, 50)
    first, second = averages(history)
    exact = weight_features(w, history[-1], first, second)
    found = weight_features(w.float(), history[-1].float(), first.float(), second.float())
    # v of order 1e-22 has squares that float32 does not have; only 1/√v is flat here.
    torch.testing.assert_close(found[:, :17].double(), exact[:, :17], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(
        exact[0, :17].std(1, correction=0), torch.ones(17), rtol=1e-5, atol=0
    )


def test_a_feature_that_is_the_same_for_all_is_zero() -> None:
    ones = torch.ones(1, 5, 4)
    found = weight_features(torch.randn(1, 4), torch.zeros(1, 4), ones, ones)
    assert float(found[:, 2:].abs().max()) < 1e-9
    assert float(found[:, 0].abs().max()) == 0


def test_the_step_is_embedded() -> None:
    found = step_features(40, torch.ones(()))
    assert found.tolist() == pytest.approx([math.tanh(40 / s) for s in SCALES])


def test_updates_are_those_of_a_perceptron_with_31_inputs() -> None:
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(31, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    linear = [layer for layer in net if isinstance(layer, nn.Linear)]
    rule = UpdateRule(
        tuple(layer.weight.detach() for layer in linear),
        tuple(layer.bias.detach() for layer in linear),
        scale=0.3,
        exponent=0.7,
    )
    x, steps = torch.randn(2, 22, 4), torch.randn(9)
    out = net(torch.cat([x.mT, steps.expand(2, 4, 9)], 2))
    expected = 0.3 * out[..., 0] * torch.exp(0.7 * out[..., 1])
    torch.testing.assert_close(rule.updates(x, steps), expected.detach())


def test_a_new_rule_is_random_with_the_defaults_of_the_code_the_thesis_names() -> None:
    rule = UpdateRule.random(seed=3)
    assert [tuple(matrix.shape) for matrix in rule.weights] == [(32, 31), (2, 32)]
    assert (rule.scale, rule.exponent) == (0.001, 0.001)
    assert not any(bias.any() for bias in rule.biases)
    wide = UpdateRule.random((2000, 1000), seed=3)
    for matrix, inputs in zip(wide.weights, (31, 2000, 1000), strict=True):
        # Of N(0, 1/inputs); the standard error of the deviation is 1/√(2 · entries).
        assert float(matrix.std()) == pytest.approx(
            inputs**-0.5, rel=4 / (2 * matrix.numel()) ** 0.5
        )
    assert not torch.equal(rule.weights[0], UpdateRule.random(seed=4).weights[0])


def test_refusals() -> None:
    with pytest.raises(InvalidArgumentError, match="widths"):
        UpdateRule.random(())
    with pytest.raises(InvalidArgumentError, match="widths"):
        UpdateRule.random((4, 0))
