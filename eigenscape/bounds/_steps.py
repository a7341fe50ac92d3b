"""The steps of an optimisation, in buffers that stay where they are.

Letters as in `optimise`: θ (2, P) holds w and ς, ϱ is a number; N a strictly lower triangle where a
layer's covariance is full, so that a network drawn is w' = w + Q(e^ς ∘ ξ + Nξ).

On a CUDA device steps are recorded in CUDA graphs, some dozens in each: an epoch is a handful of
launches, and nothing waits for the host before its end. Noise is drawn ahead of the steps, so no
graph has a generator in it. On the CPU the same functions run one after the other.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from eigenscape.bounds._local import OutputNoise
from eigenscape.bounds._task import Task
from eigenscape.bounds.posterior import Basis, LayerBasis, Posterior
from eigenscape.bounds.recipe import BoundRecipe
from eigenscape.errors import InvalidArgumentError
from eigenscape.parallel import has_kernels, record_graph
from eigenscape.risk import EmpiricalRisk

_DECAY, _EPSILON = 0.9, 1e-8
# Steps whose noise is drawn together and which one graph holds, at most, and its memory.
_STEPS, _NOISE_BYTES = 32, 2**27
# Largest layer with a full covariance: the factor has this number squared.
_MOST_FULL = 1024


class Steps:
    """Mean, variances and prior variance, and how a step changes them.

    Attributes:
        theta: w and ς (2, P), in the model's dtype.
        rho: ϱ, float64, as are all numbers that sums of many terms decide over.
        lower: N (size, size) of every layer, or nothing where the covariance is diagonal.
        squares: Mean squares of slopes, one tensor for each that moves.
        sums: Error and loss of the epoch, times n; float64.
        basis: The basis in the model's dtype.
    """

    def __init__(
        self, risk: EmpiricalRisk, task: Task, start: Posterior, recipe: BoundRecipe
    ) -> None:
        """Lay out the buffers.

        Args:
            risk: The risk, for its dtype and device.
            task: Its examples.
            start: Means, the prior, and a first basis.
            recipe: How.

        Raises:
            InvalidArgumentError: If a layer is too large for a full covariance.
        """
        self._task, self._recipe, self._device = task, recipe, risk.device
        self._space = risk.space
        w = start.means.to(risk.dtype)
        self.theta = torch.stack((w, torch.zeros_like(w)))
        self._origin = start.prior_means.to(risk.dtype)
        exact: dict[str, Any] = {"dtype": torch.float64, "device": risk.device}
        ceiling = (math.log(recipe.ceiling) - 1.0 / recipe.precision) / 2.0
        self._most_rho = torch.tensor(ceiling, **exact)
        self.rho = torch.tensor(recipe.prior_log_std, **exact).clamp_(max=self._most_rho)
        self.lower = _triangles(start.basis, w) if recipe.covariance == "full" else []
        self.squares = [torch.zeros_like(tensor) for tensor in self.moving()]
        self.sums, self._rate = torch.zeros(2, **exact), torch.zeros((), **exact)
        self._slopes, self._ones = torch.zeros_like(self.theta), w.new_ones(recipe.num_samples)
        self.basis = _copied(start.basis.to(w))
        n, b = task.num_examples, recipe.precision
        free = math.log(math.pi**2 * n / (6.0 * recipe.delta))
        # Constants as tensors: a sum with a factor is then one kernel, and a step has many sums.
        numbers = (-0.5 * len(w), free - 0.5 * len(w), b * math.log(recipe.ceiling), -4.0 * b)
        constants = (torch.tensor(number, **exact) for number in numbers)
        self._kl_start, self._budget_start, self._place_start, self._per_place = constants
        self._batch = min(recipe.batch_size, n)
        self._order = torch.empty(n, dtype=torch.int64, device=risk.device)
        self._local = OutputNoise(risk, start.basis) if recipe.noise == "outputs" else None
        drawn = (self._batch, self._local.width) if self._local else (recipe.num_samples, len(w))
        bytes_per_step = math.prod(drawn) * w.element_size()
        most = max(1, min(_STEPS, n // self._batch, _NOISE_BYTES // bytes_per_step))
        # A row for each network: those that share a step, or one for each example.
        self._noise = w.new_empty(most, *drawn)
        self._generator = torch.Generator(risk.device)
        # By shape: where the examples' numbers are written, and what replays the steps.
        self._graphs: dict[tuple[int, ...], tuple[Tensor, Callable[[], None]]] = {}
        self._use_graphs = risk.device.type == "cuda"
        self._fused = self._kernels(ceiling, free) if is_fused(recipe, w) else None

    def _kernels(self, ceiling: float, free: float) -> Callable[[Tensor], None]:
        """Return what moves everything from the loss's slopes (2, P), as `slopes` and `_move`."""
        from eigenscape.bounds import _fused

        return _fused.Update(
            *(self.theta, self.rho, self.squares, self._origin, self._rate),
            budget_start=free - 0.5 * len(self.w),
            place_start=self._recipe.precision * math.log(self._recipe.ceiling),
            precision=self._recipe.precision,
            num_examples=self._task.num_examples,
            most_rho=ceiling,
            decay=_DECAY,
            epsilon=_EPSILON,
        )

    @property
    def w(self) -> Tensor:
        """The posterior's mean (P,)."""
        return self.theta[0]

    @property
    def log_std(self) -> Tensor:
        """ς (P,)."""
        return self.theta[1]

    def moving(self) -> list[Tensor]:
        """Return what steps change, not copied."""
        return [self.theta, self.rho, *self.lower]

    def turn(self, basis: Basis) -> None:
        """Use another basis; ς and N keep their numbers."""
        new = basis.to(self.w)
        if self._local:
            self._local.turn(new)
        if _shapes(new) != _shapes(self.basis):
            self.basis = _copied(new)
            self._graphs.clear()
            return
        for ours, theirs in zip(self.basis.layers, new.layers, strict=True):
            for R, other in zip(ours.rotations, theirs.rotations, strict=True):
                R.copy_(other)

    def run_epoch(self, order: Tensor, rate: float, seed: int) -> None:
        """Make the steps of an epoch; on a GPU this returns before they are done.

        Args:
            order: All examples' numbers (n,).
            rate: Learning rate.
            seed: Of the noise; an epoch that is run again draws the same.
        """
        self._order.copy_(order)
        self._rate.fill_(rate)
        self._generator.manual_seed(seed)
        self.sums.zero_()
        for index in self.pieces():
            key = tuple(index.shape)
            self._noise[: len(index)].normal_(generator=self._generator)
            if self._use_graphs and key not in self._graphs:
                self._record(index)
            if key in self._graphs:
                buffer, replay = self._graphs[key]
                buffer.copy_(index)
                replay()
            else:
                self.run_steps(index)

    def pieces(self) -> list[Tensor]:
        """Cut the epoch into views (K, B) of its order, K steps each, the short one at the end."""
        full = self._task.num_examples // self._batch
        num_pieces = -(-full // len(self._noise))
        lengths = [
            full // num_pieces + (number < full % num_pieces) for number in range(num_pieces)
        ]
        pieces = list(self._order[: full * self._batch].view(full, -1).split(lengths))
        if full * self._batch < self._task.num_examples:
            pieces.append(self._order[full * self._batch :].unsqueeze(0))
        return pieces

    def run_steps(self, index: Tensor) -> None:
        """Make the steps whose examples `index` (S, B) names, with the noise that is there."""
        # Each network has examples of its own: a second draw on the same ones would leave their
        # noise as it is.
        task, count = self._task, math.gcd(self._recipe.num_samples, index.shape[1])
        groups = index.view(len(index), count, -1)
        x = task.inputs.index_select(0, groups.flatten()).view(
            *groups.shape, *task.inputs.shape[1:]
        )
        y = task.targets.index_select(0, groups.flatten()).view(groups.shape)
        rows = index.shape[1] if self._local else count
        results = [self._step(x[s], y[s], self._noise[s, :rows]) for s in range(len(index))]
        outputs, losses = (torch.stack(tensors) for tensors in zip(*results, strict=True))
        means = task.wrong(outputs, y).double().mean((1, 2)), losses.double().mean(1)
        self.sums += torch.stack(means).sum(1) * index.shape[1]

    def kl(self) -> Tensor:
        """Return KL(Q‖P), float64 on the device."""
        size = self._size(self.log_std.exp().square(), self.w - self._origin)
        return self._kl(size * (-2.0 * self.rho).exp(), self._kl_start)

    def _size(self, variances: Tensor, away: Tensor) -> Tensor:
        """Return tr Σ + ‖w − w₀‖², added up in float64."""
        total = variances.sum(dtype=torch.float64) + away.square().sum(dtype=torch.float64)
        for N in self.lower:
            total = total + N.square().sum(dtype=torch.float64)
        return total

    def _kl(self, scaled: Tensor, start: Tensor) -> Tensor:
        """Return KL + P/2 + `start` from the size over λ."""
        total = torch.add(start, self.rho, alpha=len(self.w)).add_(scaled, alpha=0.5)
        return total.sub_(self.log_std.sum(dtype=torch.float64))

    def diagonal(self, basis: Basis) -> tuple[Basis, Tensor]:
        """Return a basis in which Σ is diagonal, and its variances there, float64.

        Args:
            basis: The present basis in float64; it is the answer unless covariances are full.
        """
        std = self.log_std.double().exp()
        if not self.lower:
            return basis, std.square()
        layers, variances = [], []
        for layer, N in zip(basis.layers, self.lower, strict=True):
            L = torch.diag(_part(std, layer)) + N.double()
            A, singular, _ = torch.linalg.svd(L)
            Q = layer.rotate(torch.eye(layer.size).to(L), back=True).T
            zeros = torch.zeros_like(singular)
            layers.append(replace(layer, kind="full", rotations=(Q @ A,), eigenvalues=zeros))
            variances.append(singular.square())
        return Basis(tuple(layers)), torch.cat(variances)

    def _step(self, x: Tensor, y: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Make a step with x (K, B, …) and y (K, B), where B are the examples of one network.

        Returns:
            Outputs (K, B, C) and losses (K,) of the networks drawn.
        """
        if self._local:
            return self._local_step(self._local, x[0], y, noise)
        basis, std = self.basis, self.log_std.exp()
        spread = noise * std
        rows = (self.w + basis.to_standard(self._offset(spread, noise).T).T).requires_grad_()
        with torch.enable_grad():
            z = self._task.outputs(rows, x)
            losses = self._task.loss(z, y)
            (slopes,) = torch.autograd.grad(losses, rows, self._ones[: len(rows)])
        # ∂w'/∂ς is Q diag(e^ς ∘ ξ), and ∂w'/∂N has ξ at the row's place.
        turned = basis.to_basis(slopes.T).T
        products = [
            torch.tril(_part(turned, layer).T @ _part(noise, layer), -1) / len(noise)
            for layer, _ in zip(basis.layers, self.lower, strict=False)
        ]
        outer, inner = _mean(slopes), _mean(turned * spread)
        if self._fused:
            self._fused(torch.stack((outer, inner)))
        else:
            self._move(self.slopes(outer, inner, std.square(), products))
        return z.detach(), losses.detach()

    def _local_step(
        self, local: OutputNoise, x: Tensor, y: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Make a step with x (B, …) and y (1, B), drawing the layers' outputs."""
        # Each tensor is a leaf of its own: the gradient of a slice of a flat leaf would be as long
        # as the leaf, and mostly zeros.
        means = {
            name: tensor.detach().requires_grad_()
            for name, tensor in self._space.unflatten(self.w).items()
        }
        log_stds = [
            _part(self.log_std, layer).detach().requires_grad_() for layer in self.basis.layers
        ]
        with torch.enable_grad():
            z = local.outputs(means, log_stds, self.basis, x, noise).unsqueeze(0)
            losses = self._task.loss(z, y)
            slopes = torch.autograd.grad(losses.sum(), [*means.values(), *log_stds])
        joined = torch.cat([slope.flatten() for slope in slopes]).view_as(self.theta)
        if self._fused:
            self._fused(joined)
        else:
            self._move(self.slopes(joined[0], joined[1], self.log_std.exp().square(), []))
        return z.detach(), losses.detach()

    def _move(self, slopes: list[Tensor]) -> None:
        for value, slope, square in zip(self.moving(), slopes, self.squares, strict=True):
            self.update(value, slope, square)
        self.rho.clamp_(max=self._most_rho)

    def _offset(self, spread: Tensor, noise: Tensor) -> Tensor:
        """Return e^ς ∘ ξ + Nξ for rows ξ (K, P)."""
        if not self.lower:
            return spread
        pairs = zip(self.basis.layers, self.lower, strict=True)
        return spread + torch.cat([_part(noise, layer) @ N.T for layer, N in pairs], dim=1)

    def slopes(
        self, outer: Tensor, inner: Tensor, variances: Tensor, products: list[Tensor]
    ) -> list[Tensor]:
        """Add the derivatives of R to those of L with respect to w, ς and N; join that of ϱ."""
        n, b = self._task.num_examples, self._recipe.precision
        away, scale = self.w - self._origin, (-2.0 * self.rho).exp()
        scaled = self._size(variances, away) * scale
        j = torch.add(self._place_start, self.rho, alpha=-2.0 * b)
        # ∂R/∂B is 1/(4R), with R from B = budget/(n − 1).
        budget = self._kl(scaled, self._budget_start).add_(j.log(), alpha=2.0)
        weight = budget.mul_(8.0 * (n - 1)).rsqrt_()
        near = (weight * scale).to(self.theta)
        torch.addcmul(outer, away, near, out=self._slopes[0])
        torch.addcmul(inner, variances, near, out=self._slopes[1]).sub_(weight)
        return [
            self._slopes,
            (len(self.w) - scaled).addcdiv_(self._per_place, j).mul_(weight),
            *(
                torch.addcmul(product, N, near)
                for product, N in zip(products, self.lower, strict=True)
            ),
        ]

    def update(self, value: Tensor, slope: Tensor, square: Tensor) -> None:
        """Change a value along its slope, at the rate of the epoch."""
        if self._recipe.optimizer == "sgd":
            value.sub_(self._rate * slope)
            return
        square.mul_(_DECAY).addcmul_(slope, slope, value=1.0 - _DECAY)
        value.addcdiv_(self._rate * slope, square.sqrt().add_(_EPSILON), value=-1.0)

    def _record(self, index: Tensor) -> None:
        """Record steps of this shape in a graph; if that fails, go on without."""
        buffer = index.clone()
        replay = record_graph(
            lambda: self.run_steps(buffer),
            lambda: self.run_steps(buffer[:1]),
            self._device,
            changing=[*self.moving(), *self.squares, self.sums],
            what="The steps of the posterior",
        )
        if replay is None:
            self._graphs.clear()
            self._use_graphs = False
        else:
            self._graphs[tuple(index.shape)] = buffer, replay


def is_fused(recipe: BoundRecipe, like: Tensor) -> bool:
    """Tell whether such parameters are moved in kernels of their own (`_fused.py`)."""
    is_plain = recipe.optimizer == "rmsprop" and recipe.covariance == "diagonal"
    return is_plain and has_kernels(like)


def _triangles(basis: Basis, w: Tensor) -> list[Tensor]:
    large = [layer for layer in basis.layers if layer.size > _MOST_FULL]
    if large:
        raise InvalidArgumentError(
            f"`BoundRecipe(covariance='full')` is for layers of at most {_MOST_FULL} parameters; "
            f"'{large[0].name}' has {large[0].size}. Use covariance='diagonal'."
        )
    return [w.new_zeros(layer.size, layer.size) for layer in basis.layers]


def _copied(basis: Basis) -> Basis:
    """Copy the rotations: they will be overwritten."""
    layers = [
        replace(layer, rotations=tuple(R.clone() for R in layer.rotations))
        for layer in basis.layers
    ]
    return Basis(tuple(layers))


def _shapes(basis: Basis) -> list[list[torch.Size]]:
    return [[R.shape for R in layer.rotations] for layer in basis.layers]


def _mean(rows: Tensor) -> Tensor:
    return rows.mean(0) if len(rows) > 1 else rows[0]


def _part(values: Tensor, layer: LayerBasis) -> Tensor:
    """Return a layer's part of (P,) or of rows (K, P)."""
    return values[..., layer.start : layer.start + layer.size]
