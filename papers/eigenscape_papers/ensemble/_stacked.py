"""Many networks of one architecture as one: stacked parameters, outputs, gradients."""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.utils.parametrize import type_before_parametrizations

from eigenscape.errors import InvalidArgumentError, ShapeError, WrongTypeError
from eigenscape_papers.ensemble._layers import StackedLayers

Slope = Callable[[Tensor, slice], Tensor]


class Stack:
    """S networks with a leading dimension of size S on every parameter and buffer.

    Attributes:
        theta: All trained parameters, flat: parameter by parameter, within each seed by seed.
        fixed: Buffers and frozen parameters by name, stacked; buffers change in train mode.
        size: S.
        use_vmap: Run all networks as one; otherwise one after the other.
        convolution: How convolutions are done under `vmap`: "fused", "unfold" or "grouped".
        streams: CUDA streams on which networks run side by side where they do not run as one.
        channels_last: Whether images go into these with their channels beside each other.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        device: torch.device,
        *,
        unused: frozenset[str] = frozenset(),
    ) -> None:
        """Copy the networks' tensors to one place.

        Args:
            models: The networks, of one architecture; not changed.
            device: Where to train.
            unused: Parameters that do not reach the output, and so never move.
        """
        self.size, self.device = len(models), device
        self._models, self._unused = models, unused
        self._template = copy.deepcopy(models[0]).to(device)
        trained, fixed = _names(models[0], unused)
        stacked = {
            name: torch.stack([dict(_tensors(model))[name] for model in models]).to(device)
            for name in (*trained, *fixed)
        }
        self.theta = torch.cat([stacked[name].reshape(-1) for name in trained])
        self.fixed = {name: stacked[name] for name in fixed}
        self._shapes = {name: stacked[name].shape for name in trained}
        self._params = {
            name: flat.view(self._shapes[name]).detach().requires_grad_()
            for name, flat in zip(trained, self._by_name(self.theta), strict=True)
        }
        self._state_names = _state_names(models[0])
        self.use_vmap, self.convolution = self.size > 1, "grouped"
        self.streams: list[torch.cuda.Stream] = []
        self.channels_last = False

    def without(self, names: frozenset[str]) -> "Stack":
        """Return the same networks with some more parameters left alone."""
        stack = Stack(self._models, self.device, unused=self._unused | names)
        stack.use_vmap, stack.convolution = self.use_vmap, self.convolution
        stack.streams, stack.channels_last = self.streams, self.channels_last
        return stack

    @property
    def model(self) -> nn.Module:
        """The network that lends its code."""
        return self._template

    @property
    def names(self) -> list[str]:
        """Names of the trained parameters, in the order of θ."""
        return list(self._params)

    def split(self, flat: Tensor) -> list[Tensor]:
        """Cut a tensor like θ into views, one per gradient that `gradients` returns."""
        views = self._by_name(flat)
        if self.use_vmap:
            return views
        return [row for tensor in views for row in tensor.view(self.size, -1).unbind(0)]

    def outputs(self, x: Tensor) -> Tensor:
        """Return the outputs (S, B, …) in eval mode for inputs (S, B, …), without derivatives."""
        self._template.eval()
        with torch.no_grad():
            if self.use_vmap:
                return self._mapped(x)
            return torch.stack([self._one(index, x[index])[0] for index in range(self.size)])

    def gradients(self, x: Tensor, slope: Slope) -> tuple[Tensor, list[Tensor | None]]:
        """Run all networks in train mode on inputs (S, B, …), and go back.

        Args:
            x: Inputs, a batch for each network.
            slope: Gives the derivative of the loss for outputs (s, B, …) of some of the seeds.

        Returns:
            The outputs (S, B, …), detached, and the gradients in the order of `split`.
        """
        self._template.train()
        if self.use_vmap:
            with torch.enable_grad():
                z = self._mapped(x)
            r = slope(z.detach(), slice(None))
            leaves = list(self._params.values())
            return z.detach(), list(torch.autograd.grad(z, leaves, r, allow_unused=True))
        jobs = [partial(self._backward_one, index, x, slope) for index in range(self.size)]
        results = self._forked(jobs)
        by_seed = [grads for _, grads in results]
        ordered = [grads[k] for k in range(len(self._params)) for grads in by_seed]
        return torch.stack([z for z, _ in results]), ordered

    def state_dicts(self) -> dict[str, Tensor]:
        """Return what `state_dict` of the model holds, stacked, on the CPU."""
        tensors = {**self._params, **self.fixed}
        return {
            name: tensors[source].detach().cpu().clone()
            for name, source in self._state_names.items()
        }

    def _mapped(self, x: Tensor) -> Tensor:
        def one(params: Mapping[str, Tensor], fixed: Mapping[str, Tensor], x: Tensor) -> Tensor:
            return self._call({**params, **fixed}, x)

        with StackedLayers(convolution=self.convolution):
            z: Tensor = vmap(one, randomness="different")(self._params, self.fixed, x)
        return z

    def _one(self, index: int, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        params = {n: p[index].detach().requires_grad_() for n, p in self._params.items()}
        fixed = {name: tensor[index] for name, tensor in self.fixed.items()}
        if self.channels_last and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return self._call({**params, **fixed}, x), list(params.values())

    def _call(self, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        z = functional_call(self._template, dict(tensors), (x,))
        if not isinstance(z, Tensor):
            raise WrongTypeError(
                f"`fit(build)` must make models that return one tensor; got {type(z).__name__}. "
                "Wrap the model so that it returns its logits alone."
            )
        return z

    def _backward_one(
        self, index: int, x: Tensor, slope: Slope
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        with torch.enable_grad():
            z, leaves = self._one(index, x[index])
        r = slope(z.detach().unsqueeze(0), slice(index, index + 1))[0]
        return z.detach(), torch.autograd.grad(z, leaves, r, allow_unused=True)

    def _forked(
        self, jobs: Sequence[Callable[[], tuple[Tensor, tuple[Tensor | None, ...]]]]
    ) -> list[tuple[Tensor, tuple[Tensor | None, ...]]]:
        """Do the jobs, on streams of their own where there are such."""
        # All streams wait for the present one before and are waited for after, so that memory they
        # hand back to the allocator is safe to use again.
        if not self.streams:
            return [job() for job in jobs]
        here = torch.cuda.current_stream(self.device)
        for stream in self.streams:
            stream.wait_stream(here)
        results = []
        for number, job in enumerate(jobs):
            with torch.cuda.stream(self.streams[number % len(self.streams)]):
                results.append(job())
        for stream in self.streams:
            here.wait_stream(stream)
        return results

    def _by_name(self, flat: Tensor) -> list[Tensor]:
        return list(flat.split([shape.numel() for shape in self._shapes.values()]))


def build_all(build: Callable[[int], nn.Module], seeds: Sequence[int]) -> list[nn.Module]:
    """Build the network of every seed, and refuse what cannot be stacked.

    Args:
        build: The user's function. PyTorch's generator is seeded before each call, so that it need
            not do so itself; the caller takes care of putting the generator back.
        seeds: The seeds.

    Returns:
        The networks.

    Raises:
        WrongTypeError: If something else than a module comes back.
        InvalidArgumentError: If architectures differ, or one object came twice.
        ShapeError: If shapes or dtypes differ.
    """
    models: list[nn.Module] = []
    for seed in seeds:
        torch.manual_seed(seed)
        model = build(seed)
        if not isinstance(model, nn.Module):
            raise WrongTypeError(
                "`fit(build)` must be a function of a seed that returns a torch.nn.Module; it "
                f"returned {type(model).__name__}."
            )
        if any(model is earlier for earlier in models):
            raise InvalidArgumentError(
                "`fit(build)` must make a new model in every call; it returned the same object for "
                f"seed {seed} as before. Build the model inside the function."
            )
        models.append(model)
    _require_trainable(models[0])
    for seed, model in zip(seeds, models, strict=True):
        _require_alike(models[0], model, seeds[0], seed)
    return models


def _require_trainable(model: nn.Module) -> None:
    dtypes = {p.dtype for p in model.parameters() if p.requires_grad}
    if len(dtypes) != 1 or not dtypes <= {torch.float32, torch.float64}:
        listed = ", ".join(sorted(map(str, dtypes))) or "no parameter that requires a gradient"
        raise InvalidArgumentError(
            "`fit(build)` must make models whose trained parameters are all torch.float32 or all "
            f"torch.float64; got {listed}."
        )


def _require_alike(one: nn.Module, other: nn.Module, seed: int, other_seed: int) -> None:
    # A parametrised layer has a class of its own, behind which is the one that was written.
    modules, others = (
        [(name, type_before_parametrizations(module)) for name, module in model.named_modules()]
        for model in (one, other)
    )
    if modules != others:
        raise InvalidArgumentError(
            f"`fit(build)` must make one architecture for all seeds; the modules of seeds {seed} "
            f"and {other_seed} differ. Train different architectures in separate calls."
        )
    tensors, other_tensors = dict(_tensors(one)), dict(_tensors(other))
    for name in tensors.keys() | other_tensors.keys():
        a, b = (
            (tuple(t[name].shape), t[name].dtype) if name in t else None
            for t in (tensors, other_tensors)
        )
        if a != b:
            raise ShapeError(
                f"`fit(build)` must make one architecture for all seeds; '{name}' is {a} for seed "
                f"{seed} and {b} for seed {other_seed}."
            )


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    parameters = [(name, p.detach()) for name, p in model.named_parameters()]
    return parameters + list(model.named_buffers())


def _names(model: nn.Module, unused: frozenset[str]) -> tuple[list[str], list[str]]:
    """Return the names of what is trained and of what is not."""
    parameters = dict(model.named_parameters())
    trained = [n for n, p in parameters.items() if p.requires_grad and n not in unused]
    fixed = [name for name, _ in _tensors(model) if name not in trained]
    return trained, fixed


def _state_names(model: nn.Module) -> dict[str, str]:
    """Map the names in `state_dict` to ours: a tied weight stands there under each of its names."""
    known_names = {
        id(tensor): name for name, tensor in (*model.named_parameters(), *model.named_buffers())
    }
    state = model.state_dict(keep_vars=True)
    return {
        name: known_names[id(tensor)] for name, tensor in state.items() if id(tensor) in known_names
    }
