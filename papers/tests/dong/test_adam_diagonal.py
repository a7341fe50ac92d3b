"""Adam's diagonal against the steps that Adam takes."""

import pytest
import torch
from torch import nn

from eigenscape.errors import InvalidArgumentError, ShapeError, WrongTypeError
from eigenscape.space import ParamSpace
from eigenscape_papers.dong import adam_diagonal


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def space_of(net):
    return ParamSpace.of(dict(net.named_parameters()))


def train(net, optimiser, steps=7):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(5, 3, dtype=torch.float64, generator=generator)
        optimiser.zero_grad()
        net(x).square().sum().backward()
        optimiser.step()


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_one_more_step_divides_by_it(kind, amsgrad) -> None:
    """With β₁ = 0 a step is −lr g / (√v̂ + ε), with v̂ after the step."""
    net = model()
    settings = dict(lr=1e-2, betas=(0.0, 0.9), eps=1e-3, amsgrad=amsgrad, weight_decay=0.0)
    optimiser = kind(net.parameters(), **settings)
    train(net, optimiser)
    before = torch.cat([p.detach().flatten() for p in net.parameters()])
    net(torch.ones(2, 3, dtype=torch.float64)).square().sum().backward()
    gradient = torch.cat([p.grad.flatten() for p in net.parameters()])
    optimiser.step()
    after = torch.cat([p.detach().flatten() for p in net.parameters()])
    diagonal = adam_diagonal(optimiser.state_dict(), space_of(net))
    torch.testing.assert_close(after - before, -1e-2 * gradient / diagonal)


def test_groups_and_order() -> None:
    """Two groups, the last layer first, with an ε of their own."""
    net, twin = model(), model()
    plain = torch.optim.Adam(twin.parameters(), eps=1e-3)
    named = dict(net.named_parameters())
    last, first = [n for n in named if n[0] == "2"], [n for n in named if n[0] == "0"]
    groups = [
        {"params": [named[n] for n in last], "eps": 1e-3},
        {"params": [named[n] for n in first], "eps": 5e-3},
    ]
    optimiser = torch.optim.Adam(groups)
    train(net, optimiser)
    train(twin, plain)
    space = space_of(net)
    found = adam_diagonal(optimiser.state_dict(), space, names=[*last, *first])
    # Another ε moves the steps by a little only.
    expected = adam_diagonal(plain.state_dict(), space)
    bias = torch.zeros(space.size, dtype=torch.float64)
    bias[space.block(*first).index()] = 4e-3
    torch.testing.assert_close(found, expected + bias, rtol=1e-2, atol=0.0)
    with pytest.raises(ShapeError, match=r"'0.weight' of shape \(4, 3\)"):
        adam_diagonal(optimiser.state_dict(), space)


def test_stored_names_and_a_part_of_the_space() -> None:
    net = model()
    optimiser = torch.optim.Adam(reversed(list(net.named_parameters())))
    train(net, optimiser)
    space = space_of(net)
    whole = adam_diagonal(optimiser.state_dict(), space)
    part = ParamSpace({"2.bias": (2,), "0.bias": (4,)})
    found = adam_diagonal(optimiser.state_dict(), part)
    index = torch.cat([space.block(name).index() for name in part.names])
    torch.testing.assert_close(found, whole[index], rtol=0, atol=0)
    assert found.dtype == torch.float64


def test_refusals() -> None:
    net = model()
    space = space_of(net)
    with pytest.raises(WrongTypeError, match="got dict"):
        adam_diagonal({}, space)
    fresh = torch.optim.Adam(net.parameters())
    with pytest.raises(InvalidArgumentError, match="after a step"):
        adam_diagonal(fresh.state_dict(), space)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    train(net, sgd)
    with pytest.raises(InvalidArgumentError, match="has none"):
        adam_diagonal(sgd.state_dict(), space)
    train(net, fresh)
    with pytest.raises(InvalidArgumentError, match="each of the optimiser's 4 parameters; got 1"):
        adam_diagonal(fresh.state_dict(), ParamSpace({"0.bias": (4,)}))
    names = [f"other.{name}" for name in space.names]
    with pytest.raises(InvalidArgumentError, match=r"no parameter '0.weight'"):
        adam_diagonal(fresh.state_dict(), space, names=names)
