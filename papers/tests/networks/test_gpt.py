"""The decoder transformer: sizes, causality, attention against PyTorch's own, and a tied head."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eigenscape.curvature import LayerHessian
from eigenscape.errors import (
    InvalidArgumentError,
    ShapeError,
    SubstitutionWarning,
    UnknownNameError,
)
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from eigenscape_papers import networks as models

T, VOCABULARY = 5, 11


def gpt(name: str = "GPT-2x8x2") -> nn.Module:
    return models.build(name, input_shape=(T,), num_classes=VOCABULARY).double()


def tokens(*shape: int) -> Tensor:
    return torch.randint(0, VOCABULARY, shape, generator=torch.Generator().manual_seed(0))


def test_layers_and_counts() -> None:
    net = gpt()
    block = ["ln1", "qkv", "proj", "ln2", "fc1", "fc2"]
    layers = [f"b{i}-{part}" for i in (1, 2) for part in block]
    assert [name for name, _ in net.named_children()] == [
        "embed",
        "position",
        *layers,
        "ln",
        "head",
    ]
    per_block = 16 + (8 * 24 + 24) + (64 + 8) + 16 + (8 * 32 + 32) + (32 * 8 + 8)
    assert models.count_parameters(net) == 11 * 8 + 5 * 8 + 2 * per_block + 16 + 8 * 11


def test_logits_do_not_depend_on_later_tokens_but_on_earlier_ones() -> None:
    net, x = gpt(), tokens(3, T)
    before = net(x)
    for position in range(T):
        changed = x.clone()
        changed[:, position] = (x[:, position] + 1) % VOCABULARY
        after = net(changed)
        assert torch.equal(after[:, :position], before[:, :position])
        assert (after - before)[:, position:].norm(dim=(0, 2)).min() > 0
    torch.testing.assert_close(net(x[:, :3]), before[:, :3])  # a shorter sequence


def test_positions_matter() -> None:
    net, x = gpt(), torch.full((1, T), 4)
    logits = net(x)[0]
    assert (logits[1:] - logits[:1]).norm(dim=1).min() > 1e-3


def test_attention_agrees_with_that_of_pytorch() -> None:
    net, x = gpt("GPT-1x6x3"), tokens(4, T)
    h = net.embed(x) + net.position.weight
    qkv = net.get_submodule("b1-qkv")(net.get_submodule("b1-ln1")(h))
    q, k, v = (part.reshape(4, T, 3, 2).transpose(1, 2) for part in qkv.split(6, dim=-1))
    heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    h = h + net.get_submodule("b1-proj")(heads.transpose(1, 2).reshape(4, T, 6))
    units = F.gelu(net.get_submodule("b1-fc1")(net.get_submodule("b1-ln2")(h)))
    h = h + net.get_submodule("b1-fc2")(units)
    torch.testing.assert_close(net(x), net.head(net.ln(h)))


def test_a_tied_head_is_the_embedding_and_nothing_else_changes() -> None:
    net, plain = gpt("GPT-2x8x2-tied"), gpt()
    assert net.head.weight is net.embed.weight
    assert [name for name, _ in net.named_children()] == [n for n, _ in plain.named_children()]
    assert models.count_parameters(net) == models.count_parameters(plain) - 8 * 11
    assert [name for name, _ in net.named_parameters()] == [
        name for name, _ in plain.named_parameters() if name != "head.weight"
    ]
    # All is drawn from one generator, the head last: without it the others are the same.
    for name, parameter in net.named_parameters():
        assert torch.equal(parameter, plain.get_parameter(name))
    x, seen = tokens(3, T), []
    net.head.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    torch.testing.assert_close(net(x), seen[0] @ net.embed.weight.T)


@pytest.mark.parametrize("init", ["pytorch", "xavier"])
def test_a_tied_head_is_drawn_as_an_embedding(init: str) -> None:
    net = models.build("GPT-1x40x2-tied", input_shape=(T,), num_classes=99, init=init)
    assert net.head.weight.std().item() == pytest.approx(0.02, rel=0.05)
    plain = models.build("GPT-1x40x2", input_shape=(T,), num_classes=99, init=init)
    assert plain.head.weight.std().item() > 0.08


def test_the_block_of_a_tied_weight_has_both_uses() -> None:
    net = gpt("GPT-1x4x2-tied")
    with torch.no_grad():
        net.embed.weight.mul_(20)  # at 0.02 second derivatives would all but vanish
    x = tokens(3, T)
    y = x.roll(-1, 1)
    weight = net.embed.weight
    loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten())
    (slope,) = torch.autograd.grad(loss, weight, create_graph=True)
    rows = [torch.autograd.grad(s, weight, retain_graph=True)[0] for s in slope.reshape(-1)]
    H = torch.stack([row.reshape(-1) for row in rows])
    risk = EmpiricalRisk(net, CrossEntropy(), (x, y))
    with pytest.warns(SubstitutionWarning, match=r"'embed.weight' is tied to 'head.weight'"):
        block = LayerHessian(risk, "embed")
    assert block.representation == "full"
    torch.testing.assert_close(block.to_dense(), H, rtol=1e-9, atol=1e-12)
    # The head has no parameter of its own: half of a block is never passed off as the whole.
    with pytest.raises(UnknownNameError, match="parameters of its own"):
        LayerHessian(risk, "head")


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"must be \(T,\).*; got \(1, 8\)"):
        models.build("GPT-1x4x2", input_shape=(1, 8), num_classes=5)
    with pytest.raises(
        InvalidArgumentError, match=r"multiple of .* width 7 and 2 heads.* such as 8"
    ):
        models.build("GPT-1x7x2", input_shape=(8,), num_classes=5)
    with pytest.raises(ShapeError, match=r"up to its context 5; got \(3, 6\)"):
        gpt()(tokens(3, 6))
    with pytest.raises(ShapeError, match=r"shape \(N, T\).*; got \(3,\)"):
        gpt()(tokens(3))
