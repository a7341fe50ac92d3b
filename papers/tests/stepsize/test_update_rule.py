"""The features, weight by weight and without tensors, and the perceptron over them."""

import math

import pytest
import torch
from torch import Tensor, nn

from eigenscape.errors import InvalidArgumentError, WrongTypeError
from eigenscape_papers.stepsize import Parts, UpdateRule, step_features, weight_features

DECAYS = (0.5, 0.9, 0.99, 0.999, 0.9999)
SCALES = (3, 10, 30, 100, 300, 1000, 3000, 10_000, 300_000)


def plain_features(
    history: list[list[float]], weights: list[float], lengths: list[int]
) -> list[list[float]]:
    """Return the 22 features of one network, from all its gradients so far, in plain Python."""
    rows = []
    for i in range(len(weights)):
        past = [step[i] for step in history]
        g = past[-1]
        sums = [
            (
                sum((1 - d) * d ** (len(past) - 1 - s) * x for s, x in enumerate(past)),
                sum((1 - d) * d ** (len(past) - 1 - s) * x * x for s, x in enumerate(past)),
            )
            for d in DECAYS
        ]
        roots = [1 / math.sqrt(v + 1e-6) for _, v in sums]
        rows.append([weights[i], g, *(m for m, _ in sums), *(v for _, v in sums)])
        rows[-1] += [m * r for (m, _), r in zip(sums, roots, strict=True)] + roots
    found = []
    for k in range(22):
        column, start = [row[k] for row in rows], 0
        found.append([])
        for length in lengths:
            part = column[start : start + length]
            unit = math.sqrt(1e-5 + sum(x * x for x in part) / length)
            found[-1] += [x / unit for x in part]
            start += length
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
    w, history, lengths = torch.randn(2, 7), torch.randn(3, 2, 7), [4, 1, 2]
    found = weight_features(w, history[-1], *averages(history), Parts.of(lengths, w))
    assert found.shape == (2, 22, 7)
    for problem in range(2):
        past, own = history[:, problem].tolist(), w[problem].tolist()
        expected = torch.tensor(plain_features(past, own, lengths))
        torch.testing.assert_close(found[problem], expected, rtol=1e-6, atol=1e-6)


def test_parts_are_means_over_tensors() -> None:
    parts = Parts.of([3, 1, 2], torch.ones((), dtype=torch.float32))
    means = torch.tensor([1.0, 2, 6, 5, 4, 8], dtype=torch.float32) @ parts.shares
    assert means.tolist() == [3, 5, 6]
    assert (means @ parts.members).tolist() == [3, 3, 3, 5, 6, 6]


def test_no_gradient_at_all() -> None:
    zero = torch.zeros(1, 5, 4)
    found = weight_features(torch.randn(1, 4), zero[:, 0], zero, zero, Parts.of([4], zero))
    assert not found[:, 1:17].any()
    # 1/√v is the same for all weights then, and its own unit.
    torch.testing.assert_close(found[:, 17:], torch.ones(1, 5, 4), rtol=1e-4, atol=0)


def test_the_step_is_embedded() -> None:
    found = step_features(40, torch.ones(()))
    assert found.tolist() == pytest.approx([math.tanh(41 / s - 1) for s in SCALES])


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


def test_each_network_may_have_a_rule_of_its_own() -> None:
    rules = UpdateRule.random((6, 5)).to(torch.ones(())).repeated(3)
    moved = [part + torch.randn(part.shape) for part in rules.parameters]
    rules, x, steps = rules.with_parameters(moved), torch.randn(3, 22, 4), torch.randn(9)
    expected = [rules[i].updates(x[i : i + 1], steps) for i in range(3)]
    torch.testing.assert_close(rules.updates(x, steps), torch.cat(expected))


def test_a_new_rule_is_random_as_in_the_code_of_the_thesis() -> None:
    rule = UpdateRule.random(seed=3)
    assert [tuple(matrix.shape) for matrix in rule.weights] == [(32, 31), (2, 32)]
    assert (rule.scale, rule.exponent) == (0.001, 0.001)
    assert all(bool((bias == 0.1).all()) for bias in rule.biases)
    for matrix in UpdateRule.random((2000, 1000), seed=3).weights:
        # The standard error of the deviation is 1/√(2 · entries).
        assert float(matrix.std()) == pytest.approx(1.0, rel=4 / (2 * matrix.numel()) ** 0.5)
    assert not torch.equal(rule.weights[0], UpdateRule.random(seed=4).weights[0])


def test_refusals() -> None:
    with pytest.raises(InvalidArgumentError, match="widths"):
        UpdateRule.random(())
    with pytest.raises(InvalidArgumentError, match="widths"):
        UpdateRule.random((4, 0))
    with pytest.raises(WrongTypeError, match=r"`UpdateRule.random\(seed=...\)`"):
        UpdateRule.random(seed=1.5)
