"""The register of networks, and what holds for the networks of every family."""

import copy
import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import eigenscape as es
from eigenscape.errors import InvalidArgumentError, ShapeError, UnknownNameError, WrongTypeError
from eigenscape.testing import dense_hessian
from eigenscape_papers import networks as models

# One tiny instance of every family and of every place that BatchNorm can have, with its input.
TINY: dict[str, tuple[int, ...]] = {
    "linear": (2, 3),
    "linear-nobias": (5,),
    "one-hidden-4": (2, 3),
    "F-4^2-3": (1, 2, 3),
    "F-4^2-BN": (6,),
    "MLP-2x4": (2, 3),
    "MLP-2x4-BN": (2, 3),
    "LeNet5-(conv1-2)-(conv2-2)-(fc1-3)-(fc2-3)": (1, 16, 18),
    "LeNet5-(conv1-2)-(conv2-2)-(fc1-3)-(fc2-3)-BN": (1, 16, 16),
    "VGG11-W2": (1, 32, 32),
    "VGG11-W2-BN": (1, 28, 28),
    "VGG11-W1_bn": (2, 32, 32),
    "ResNet18-W2": (2, 8, 10),
    "ResNet18-W2-BN": (1, 8, 8),
    "ResNet18-W2_bn": (1, 8, 8),
    "SmallConv-2-3": (1, 8, 8),
    "GPT-1x4x2": (5,),
}
CLASSES, BATCH = 7, 3


def tiny(name: str, seed: int = 0) -> nn.Module:
    """A tiny network in float64 and eval mode, its BatchNorm with statistics unlike the initial.

    So few units would often all be dead and every derivative zero. Mostly positive weights keep
    them alive; `test_every_parameter_matters` shows that they do.
    """
    net = models.build(
        name, input_shape=TINY[name], num_classes=CLASSES, seed=seed, init="kaiming"
    ).double()
    generator = torch.Generator().manual_seed(seed + 100)
    for buffer_name, buffer in net.named_buffers():
        if "running" in buffer_name:
            shift = 0.5 if "var" in buffer_name else -0.8
            buffer.copy_(torch.rand(buffer.shape, generator=generator).to(buffer) + shift)
    with torch.no_grad():
        for layer in net.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                layer.weight += 0.9 * layer.weight.abs()
    return net.eval()


def batch(name: str, size: int = BATCH) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    if name.startswith("GPT"):
        tokens = torch.randint(0, CLASSES, (size, *TINY[name]), generator=generator)
        return tokens, tokens.roll(-1, 1)
    x = torch.randn(size, *TINY[name], generator=generator, dtype=torch.float64)
    return x, torch.arange(size) % CLASSES


# --- every family --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TINY)
def test_output_has_one_row_of_logits_a_sample(name: str) -> None:
    x, y = batch(name)
    assert tiny(name)(x).shape == (*y.shape, CLASSES)


@pytest.mark.parametrize("name", TINY)
def test_functional_call_and_copies_agree_with_the_module(name: str) -> None:
    net, (x, _) = tiny(name), batch(name)
    expected = net(x)
    state = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    shell = copy.deepcopy(net).to("meta")
    torch.testing.assert_close(torch.func.functional_call(shell, state, (x,)), expected)
    torch.testing.assert_close(copy.deepcopy(net)(x), expected)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", TINY)
def test_stacked_seeds_under_vmap_agree_with_one_by_one(name: str, train: bool) -> None:
    nets, (x, _) = [tiny(name, seed).train(train) for seed in (0, 1, 2)], batch(name)
    params, buffers = torch.func.stack_module_state(nets)
    params = {key: value.detach() for key, value in params.items()}

    def call(p: dict[str, Tensor], b: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(nets[0], (p, b), (x,))

    together = torch.func.vmap(call)(params, buffers)
    apart = [net(x) for net in nets]
    torch.testing.assert_close(together, torch.stack(apart))
    for key, buffer in buffers.items():  # in train mode, the statistics moved alike
        torch.testing.assert_close(buffer, torch.stack([net.get_buffer(key) for net in nets]))


@pytest.mark.parametrize("name", TINY)
def test_hessian_product_agrees_with_double_backward(name: str) -> None:
    net, (x, y) = tiny(name), batch(name, 4)

    def loss(p: dict[str, Tensor]) -> Tensor:
        logits = torch.func.functional_call(net, p, (x,))
        return F.cross_entropy(logits.flatten(0, -2), y.flatten())

    expected = dense_hessian(loss, dict(net.named_parameters()))
    assert expected.norm() > 0
    risk = es.EmpiricalRisk(net, es.CrossEntropy(), (x, y), batch_size=3)
    v = torch.randn(expected.shape[0])
    error = (es.Hessian(risk) @ v - expected @ v).norm()
    assert error <= 1e-11 * expected.norm() * v.norm()  # float64 sums in another order


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("F-4^2-3", "fc2"),
        ("LeNet5-(conv1-2)-(conv2-2)-(fc1-3)-(fc2-3)", "conv2"),
        ("VGG11-W2", "conv8"),
        ("ResNet18-W2", "sc-conv2"),
        ("GPT-1x4x2", "b1-qkv"),
        ("GPT-1x4x2", "position"),
    ],
)
def test_layers_are_found_by_the_names_of_the_papers(name: str, layer: str) -> None:
    risk = es.EmpiricalRisk(tiny(name), es.CrossEntropy(), batch(name))
    block = es.LayerHessian(risk, layer)
    assert block.representation != "full"
    torch.testing.assert_close(block.to_dense(), es.Hessian(risk)[layer].to_dense())


@pytest.mark.parametrize("name", TINY)
def test_every_parameter_matters(name: str) -> None:
    net, (x, y) = tiny(name), batch(name, 4)
    F.cross_entropy(net(x).flatten(0, -2), y.flatten()).backward()
    assert [path for path, p in net.named_parameters() if not p.grad.abs().max() > 0] == []


@pytest.mark.parametrize("name", TINY)
def test_layers_stand_at_the_top(name: str) -> None:
    assert all(path.count(".") == 1 for path, _ in tiny(name).named_parameters())


# --- seeds and defaults --------------------------------------------------------------------------


def weights(name: str, **options: object) -> Tensor:
    net = models.build(name, input_shape=TINY[name], num_classes=CLASSES, **options)
    return nn.utils.parameters_to_vector(net.parameters()).detach()


@pytest.mark.parametrize("name", TINY)
def test_the_seed_alone_fixes_the_weights(name: str) -> None:
    first = weights(name, seed=5)
    torch.rand(3)
    torch.set_default_dtype(torch.float32)
    assert first.dtype == torch.float32
    assert torch.equal(first, weights(name, seed=5))
    assert not torch.equal(first, weights(name, seed=6))


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    for name in TINY:
        weights(name)
    assert torch.equal(before, torch.get_rng_state())


def test_networks_are_float32_on_the_cpu_in_train_mode_whatever_the_defaults() -> None:
    with torch.device("meta"):
        net = models.build("F-4-BN", input_shape=(3,), num_classes=2)
    tensors = [*net.parameters(), *net.buffers()]
    assert {str(t.device) for t in tensors} == {"cpu"}
    assert {t.dtype for t in tensors} == {torch.float32, torch.int64}  # int64 counts batches
    assert net.training


# --- names ---------------------------------------------------------------------------------------


def test_every_example_is_read_by_its_own_family_and_no_other() -> None:
    from eigenscape_papers.networks.build import _FAMILIES

    for family in _FAMILIES:
        for example in family.info.examples:
            readers = [other for other in _FAMILIES if re.fullmatch(other.name, example)]
            assert readers == [family], example


def test_names_and_descriptions_are_those_of_the_register() -> None:
    assert models.names() == tuple(info.pattern for info in models.describe())
    assert {"F-n^m", "LeNet5", "MLP-mxn"} <= set(models.names())
    assert len(set(models.names())) == len(models.names())
    for info in models.describe():
        assert info.summary
        assert info.source
        assert info.layers


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("F200^2", "'F-200^2'"),
        ("F-200^", "'F-200^2'"),
        ("F-0", "'F-600'"),
        ("F-", "F-n[^m][-n[^m]]…[-BN]"),
        ("lenet5", "'LeNet5'"),
        ("LeNet5-(fc3-80)", "'LeNet5-(fc1-80)'"),
        ("LeNet5-fc1-80", "'LeNet5-(fc1-80)'"),
        ("VGG11-BN-W64", "'VGG11-W64-BN'"),
        ("ResNet18-64", "'ResNet18-W64'"),
        ("MLP-8-2048", "'MLP-8x2048-BN'"),
        ("GPT-2x64", "'GPT-2x64x4'"),
        ("T-600", "grammar"),
        (" F-600", "'F-600'"),
        ("", "grammar"),
    ],
)
def test_unknown_names_are_refused_with_near_ones_and_the_grammar(name: str, nearest: str) -> None:
    with pytest.raises(UnknownNameError, match=r"grammar of names: .*GPT-mxnxh") as caught:
        models.build(name, input_shape=(1, 32, 32), num_classes=10)
    assert nearest in str(caught.value)


def test_other_arguments_are_refused_by_name() -> None:
    with pytest.raises(WrongTypeError, match=r"build\(name=\.\.\.\)` must be a string; got int"):
        models.build(5, input_shape=(4,), num_classes=2)
    with pytest.raises(ShapeError, match=r"shape of one input .*; got 784"):
        models.build("linear", input_shape=784, num_classes=2)
    with pytest.raises(ShapeError, match="shape of one input"):
        models.build("linear", input_shape=(), num_classes=2)
    with pytest.raises(InvalidArgumentError, match=r"input_shape=\(\.\.\.\).* at least 1; got 0"):
        models.build("linear", input_shape=(0, 4), num_classes=2)
    with pytest.raises(InvalidArgumentError, match=r"num_classes=.* at least 1; got 0"):
        models.build("linear", input_shape=(4,), num_classes=0)
    with pytest.raises(InvalidArgumentError, match=r"seed=.* from 0 to 4294967295; got -1"):
        models.build("linear", input_shape=(4,), num_classes=2, seed=-1)
    with pytest.raises(UnknownNameError, match=r"init=.* 'pytorch', 'xavier', .*; got 'zeros'"):
        models.build("linear", input_shape=(4,), num_classes=2, init="zeros")


def test_parameters_are_counted_once_where_tied() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.BatchNorm1d(3, affine=False))
    assert models.count_parameters(net) == 24
    net[1].weight = net[0].weight
    assert models.count_parameters(net) == 15
