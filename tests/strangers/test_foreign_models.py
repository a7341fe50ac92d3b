"""Models that PyTorch has turned into something else: as right as the plain model, or refused."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import eigenscape as es
from eigenscape.analyses import exact_trace
from eigenscape.curvature import OutputHessian
from eigenscape.errors import EigenscapeError

N = 12
QUESTIONS: dict[str, Callable[[es.EmpiricalRisk, str], Tensor]] = {
    "value": lambda r, _: torch.tensor(r.value()),
    "gradient": lambda r, _: r.gradient(),
    "Hessian": lambda r, _: es.Hessian(r) @ torch.ones(r.space.size, dtype=r.dtype),
    "linearised": lambda r, _: (
        es.Hessian(r, representation="linearised") @ torch.ones(r.space.size, dtype=r.dtype)
    ),
    "GaussNewton": lambda r, _: es.GaussNewton(r) @ torch.ones(r.space.size, dtype=r.dtype),
    "LayerHessian": lambda r, layer: es.LayerHessian(r, layer).to_dense(),
    "KroneckerHessian": lambda r, layer: es.KroneckerHessian(r, layer).to_dense(),
    "OutputHessian": lambda r, layer: OutputHessian(r, layer).matrix,
    "exact_trace": lambda r, _: exact_trace(r).traces,
}


def plain() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def data(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    x = torch.randn(N, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x.to(dtype), torch.arange(N) % 3


def answers(model: Any, layer: str, dtype: torch.dtype = torch.float64) -> dict[str, Tensor | str]:
    """Ask everything; a refusal is its words, and a raw exception passes through."""
    found: dict[str, Tensor | str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, question in QUESTIONS.items():
            try:
                risk = es.EmpiricalRisk(model, es.CrossEntropy(), data(dtype))
                found[name] = question(risk, layer).detach()
            except EigenscapeError as refusal:
                found[name] = str(refusal)
    return found


def part(convert: Callable[[nn.Module], Any], number: int) -> Callable[[nn.Sequential], nn.Module]:
    def convert_part(model: nn.Sequential) -> nn.Module:
        model[number] = convert(model[number])
        return model

    return convert_part


def compiled(module: nn.Module) -> Any:
    return torch.compile(module, backend="eager")


def compiled_in_place(module: nn.Module) -> nn.Module:
    module.compile(backend="eager")
    return module


def exported(module: nn.Module) -> nn.Module:
    return torch.export.export(module, data()[:1]).module()


PARTS = {"KroneckerHessian", "OutputHessian", "exact_trace"}
# What may be refused, as long as it is not wrong.
KINDS: dict[str, tuple[Callable[[Any], Any], set[str]]] = {
    "scripted": (torch.jit.script, {"linearised", *PARTS}),
    "traced": (lambda m: torch.jit.trace(m, data()[0]), {"linearised", *PARTS}),
    "scripted layer": (part(torch.jit.script, 0), {"linearised", *PARTS}),
    "scripted activation": (part(torch.jit.script, 1), {"linearised"}),
    "compiled": (compiled, set()),
    "compiled in place": (compiled_in_place, {"linearised"}),
    "compiled layer": (part(compiled, 2), {"linearised"}),
    "of fx": (torch.fx.symbolic_trace, set()),
    "exported": (exported, PARTS),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_what_pytorch_makes_of_a_model_gives_the_same_numbers(kind: str) -> None:
    convert, may_be_refused = KINDS[kind]
    expected = answers(plain(), "0")
    for name, found in answers(convert(plain()), "0").items():
        if isinstance(found, str):
            assert name in may_be_refused, found
        else:
            torch.testing.assert_close(found, expected[name])


# --- tensors without values ---


def lazily(model: nn.Module, *, frozen: bool = False) -> nn.Module:
    for parameter in model.parameters():
        parameter.requires_grad = parameter.requires_grad and not frozen
    return nn.Sequential(model, nn.Tanh(), nn.Linear(6, 3))


LAZY: dict[str, Callable[[], nn.Module]] = {
    "weights": lambda: lazily(nn.LazyLinear(6)),
    "frozen weights": lambda: lazily(nn.LazyLinear(6), frozen=True),
    "buffers": lambda: nn.Sequential(plain(), nn.LazyBatchNorm1d(affine=False)),
}


@pytest.mark.parametrize("kind", LAZY)
def test_lazy_layers_must_run_first(kind: str) -> None:
    model = LAZY[kind]()
    found = answers(model, "2")
    assert all("has no shape yet" in str(words) for words in found.values())
    assert any(nn.parameter.is_lazy(t) for t in (*model.parameters(), *model.buffers()))
    model(data()[0])
    assert isinstance(answers(model, "2")["Hessian"], Tensor)


META: dict[str, Callable[[], nn.Module]] = {
    "all": lambda: plain().to("meta"),
    "one layer": lambda: part(lambda layer: layer.to("meta"), 2)(plain()),
    "a frozen layer": lambda: part(lambda layer: layer.to("meta").requires_grad_(False), 2)(
        plain()
    ),
}


@pytest.mark.parametrize("kind", META)
def test_tensors_on_meta_are_refused(kind: str) -> None:
    assert all("meta" in str(words) for words in answers(META[kind](), "0").values())


# --- quantised ---


def quantised(model: nn.Module) -> nn.Module:
    found: nn.Module = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    return found


def quantised_part(number: int) -> nn.Module:
    return part(lambda layer: quantised(nn.Sequential(layer)), number)(plain().float())


about_quantisation = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:Please use quant_min", "ignore:torch.quantize_per_tensor"
)


@about_quantisation
def test_a_quantised_model_has_nothing_to_differentiate() -> None:
    found = answers(quantised(plain().float()), "0", torch.float32)
    assert all("no parameters" in str(words) for words in found.values())


@about_quantisation
def test_parameters_in_front_of_a_quantised_layer_have_no_derivative() -> None:
    found = answers(quantised_part(2), "0", torch.float32)
    assert isinstance(found.pop("value"), Tensor)
    assert not [name for name, answer in found.items() if isinstance(answer, Tensor)]


@about_quantisation
def test_parameters_behind_a_quantised_layer_are_right() -> None:
    model = quantised_part(0)
    found = answers(model, "2", torch.float32)
    x, y = data(torch.float32)
    last = nn.Sequential(nn.Linear(6, 3))
    last[0].load_state_dict(model[2].state_dict())
    with torch.no_grad():
        inputs = torch.tanh(model[0](x))
    twin = es.EmpiricalRisk(last.float(), es.CrossEntropy(), (inputs, y))
    torch.testing.assert_close(found["Hessian"], es.Hessian(twin) @ torch.ones(21).float())
    torch.testing.assert_close(found["LayerHessian"], es.Hessian(twin).to_dense())


@about_quantisation
def test_imitated_quantisation_is_refused_until_it_is_switched_off() -> None:
    model = plain().float().train()
    model.qconfig = torch.ao.quantization.get_default_qat_qconfig("x86")
    model = torch.ao.quantization.prepare_qat(model).float()
    model(data(torch.float32)[0])
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    found = answers(model.eval(), "0", torch.float32)
    assert all("imitates quantisation" in str(words) for words in found.values())
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    model.apply(torch.ao.quantization.disable_fake_quant)
    model.apply(torch.ao.quantization.disable_observer)
    expected = answers(plain().float(), "0", torch.float32)
    found = answers(model, "0", torch.float32)
    for name in ("value", "gradient", "Hessian", "GaussNewton", "LayerHessian"):
        assert isinstance(found[name], Tensor), found[name]
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5)


EXTENSION = torch.library.Library("strangers", "DEF")
EXTENSION.define("square(Tensor x) -> Tensor")
EXTENSION.impl("square", lambda x: torch.from_numpy(x.detach().numpy() ** 2), "CPU")


def test_an_operation_of_an_extension_without_a_derivative_is_refused() -> None:
    """PyTorch warns, and takes zero."""

    class Extended(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.ops.strangers.square(self.a(x))
            return self.b(h + 0.1 * torch.tanh(self.a(x)))

    found = answers(Extended(), "a")
    assert isinstance(found.pop("value"), Tensor)
    assert not [name for name, answer in found.items() if isinstance(answer, Tensor)]
    assert "no derivative" in str(found["gradient"])


# --- spread over processes ---


@pytest.fixture
def one_process(tmp_path: Any) -> Iterator[Any]:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield dist.device_mesh.init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


def test_data_parallel_models_are_right(one_process: Any) -> None:
    model = nn.parallel.DistributedDataParallel(plain())
    expected = answers(plain(), "0")
    for name, found in answers(model, "module.0").items():
        torch.testing.assert_close(found, expected[name])


def fully_sharded(model: nn.Module, mesh: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model, mesh=mesh)


def wrapped(model: nn.Module, mesh: Any) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))


def tensor_parallel(model: nn.Module, mesh: Any) -> nn.Module:
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    return parallelize_module(model, mesh, {"0": ColwiseParallel()})


@pytest.mark.parametrize("spread", [fully_sharded, wrapped, tensor_parallel])
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:FSDP is switching to")
def test_models_spread_over_processes_are_refused(one_process: Any, spread: Any) -> None:
    model = spread(plain(), one_process)
    assert all("spread over processes" in str(said) for said in answers(model, "0").values())
    with torch.no_grad():
        model(data()[0])  # some are whole for a while after they ran
    assert all("spread over processes" in str(said) for said in answers(model, "0").values())
