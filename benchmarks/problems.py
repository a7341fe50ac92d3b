"""Networks with synthetic, class-structured data, shortly trained, and what is true of them.

The references here are plain PyTorch in float64 and use nothing of the package.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES, TOKENS, LENGTH = 10, 65, 32


@dataclass(frozen=True)
class Problem:
    """A trained network and all of its data, in one batch."""

    name: str
    model: nn.Module
    x: Tensor
    y: Tensor
    loss: float
    first: str | None  # the first layer, whose input needs no derivative

    @property
    def dtype(self) -> torch.dtype:
        """The parameters'."""
        return next(self.model.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """The data's."""
        return self.x.device

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(p.numel() for p in self.model.parameters())

    def to(self, *where: torch.device | torch.dtype) -> "Problem":
        """Return a copy on a device or in a dtype."""
        model, x, y = copy.deepcopy(self.model), self.x, self.y
        for kind in where:
            model = model.to(kind)
            x = x.to(kind) if isinstance(kind, torch.device) or x.is_floating_point() else x
            y = y.to(kind) if isinstance(kind, torch.device) else y
        return replace(self, model=model, x=x, y=y)

    def vector(self, columns: int = 1, seed: int = 0) -> Tensor:
        """Return random unit vectors (n,) or (n, columns), the same on every device."""
        generator = torch.Generator().manual_seed(seed)
        V = torch.randn(self.size, columns, generator=generator, dtype=torch.float64)
        V = (V / V.norm(dim=0)).to(self.device, self.dtype)
        return V[:, 0] if columns == 1 else V

    def gradient(self) -> tuple[Tensor, ...]:
        """The unit of all times: the gradient over all data, by plain autograd."""
        loss = F.cross_entropy(self.model(self.x), self.y)
        return torch.autograd.grad(loss, list(self.model.parameters()))

    def floors(self) -> tuple[float, float]:
        """Count matrix products: a kept Hessian product and a Gauss-Newton one, in gradients.

        Per layer, the gradient takes 3, the Hessian product 6, the Gauss-Newton product 4; in the
        first layer, whose input is constant, each takes 2. Attention counts like a layer.
        """
        if self.first is None:
            return 2.0, 4 / 3
        work: dict[str, int] = {}

        def count(name: str, layer: nn.Module) -> None:
            def hook(_m: nn.Module, _i: tuple[Tensor], output: Tensor) -> None:
                work[name] = output[0].numel() * layer.weight[0].numel()

            handles.append(layer.register_forward_hook(hook))

        handles: list[torch.utils.hooks.RemovableHandle] = []
        for name, layer in self.model.named_modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                count(name, layer)
        self.model(self.x[:1])
        for handle in handles:
            handle.remove()
        first = work.pop(self.first)
        rest = sum(work.values())
        unit = 2 * first + 3 * rest
        return (2 * first + 6 * rest) / unit, (2 * first + 4 * rest) / unit


class MLP(nn.Sequential):
    """784-200-200-10 with ReLU."""

    def __init__(self) -> None:
        super().__init__()
        for i, (a, b) in enumerate([(784, 200), (200, 200), (200, CLASSES)]):
            self.add_module(f"fc{i + 1}", nn.Linear(a, b))
            if b != CLASSES:
                self.add_module(f"relu{i + 1}", nn.ReLU())


class LeNet5(nn.Module):
    """LeNet5 with ReLU and max-pooling, for 3 × 32 × 32 images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class Block(nn.Module):
    """Causal attention and a two-layer perceptron, LayerNorm before each."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.fused = heads, False
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output."""
        n, t, width = x.shape
        parts = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) / k.shape[-1] ** 0.5
            future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
            mixed = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(n, t, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A small GPT; classes are dimension 1 of its output, as `F.cross_entropy` wants them."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(TOKENS, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, TOKENS)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output."""
        h = self.token(x) + self.place(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h)).transpose(1, 2)

    def fuse(self, fused: bool) -> "GPT":
        """Choose between `scaled_dot_product_attention` and attention written out."""
        for block in self.blocks:
            block.fused = fused
        return self


def mlp(n: int) -> Problem:
    torch.manual_seed(0)
    y = torch.arange(n) % CLASSES
    x = 0.15 * torch.randn(CLASSES, 784)[y] + torch.randn(n, 784)
    return _trained("mlp", MLP(), x, y, goal=0.4, first="fc1")


def lenet(n: int) -> Problem:
    torch.manual_seed(0)
    y = torch.arange(n) % CLASSES
    coarse = torch.randn(CLASSES, 3, 8, 8)
    x = 0.7 * F.interpolate(coarse, scale_factor=4.0)[y] + torch.randn(n, 3, 32, 32)
    return _trained(f"lenet N={n}", LeNet5(), x, y, goal=0.4, first="conv1")


def gpt(n: int, depth: int, width: int) -> Problem:
    """Sequences of a random chain in which each token has one likely and one rare successor."""
    torch.manual_seed(0)
    likely, rare = torch.randperm(TOKENS), torch.randperm(TOKENS)
    text = [torch.randint(TOKENS, (n,))]
    for _ in range(LENGTH):
        text.append(torch.where(torch.rand(n) < 0.85, likely[text[-1]], rare[text[-1]]))
    tokens = torch.stack(text, dim=1)
    model = GPT(depth, width)
    return _trained("gpt", model, tokens[:, :-1], tokens[:, 1:], goal=0.8, first=None)


def fused(problem: Problem) -> Problem:
    """The same GPT with the same weights, calling `F.scaled_dot_product_attention`."""
    return replace(problem, name="gpt-sdpa", model=copy.deepcopy(problem.model).fuse(True))


def _trained(
    name: str, model: nn.Module, x: Tensor, y: Tensor, goal: float, first: str | None
) -> Problem:
    """Take steps of Adam over all data until the loss is at the goal: neither random nor zero."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(2000):
        loss = F.cross_entropy(model(x), y)
        if loss.item() <= goal:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    optimizer.zero_grad()
    return Problem(name, model.eval(), x, y.contiguous(), loss.item(), first)


def exact(problem: Problem) -> Problem:
    """The same problem in float64, with attention written out."""
    double = problem.to(torch.float64)
    if isinstance(double.model, GPT):
        double.model.fuse(False)
    return double


def hessian_reference(problem: Problem, names: tuple[str, ...] = ()) -> Callable[[Tensor], Tensor]:
    """Products (n,) with the float64 Hessian, or with its block of some parameters."""
    double = exact(problem)
    named = dict(double.model.named_parameters())
    params = [named[name] for name in (names or named)]
    loss = F.cross_entropy(double.model(double.x), double.y)
    slopes = torch.autograd.grad(loss, params, create_graph=True)
    slope = torch.cat([s.reshape(-1) for s in slopes])

    def product(v: Tensor) -> Tensor:
        parts = torch.autograd.grad(slope, params, v.to(slope), retain_graph=True)
        return torch.cat([part.reshape(-1) for part in parts])

    return product


def gauss_newton_reference(problem: Problem) -> Callable[[Tensor], Tensor]:
    """Products (n,) with the float64 Gauss-Newton matrix: forward mode, then one vjp."""
    double = exact(problem)
    params = {name: p.detach() for name, p in double.model.named_parameters()}

    def output(values: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(double.model, values, (double.x,))

    def product(v: Tensor) -> Tensor:
        pieces = v.double().split([p.numel() for p in params.values()])
        tangent = {n: t.view_as(params[n]) for n, t in zip(params, pieces, strict=True)}
        z, moved = torch.func.jvp(output, (params,), (tangent,))
        p = z.softmax(1)
        bent = p * (moved - (p * moved).sum(1, keepdim=True)) / double.y.numel()
        (pulled,) = torch.func.vjp(output, params)[1](bent)
        return torch.cat([pulled[name].reshape(-1) for name in params])

    return product


def relu_trace(problem: Problem) -> float:
    """The exact trace of the Hessian of an MLP with ReLU, where it equals Gauss-Newton's.

    With ∇²ℓ = Σ_c s_c s_cᵀ and s_c = √p_c (e_c − p), the trace is mean Σ_c ‖Jᵀ s_c‖², and of a
    linear layer with input a and back-propagated δ, ‖Jᵀ s‖² = (‖a‖² + 1) ‖δ‖².
    """
    double = exact(problem)
    inputs, outputs, h = [], [], double.x
    for layer in double.model:
        if isinstance(layer, nn.Linear):
            inputs.append(h.detach())
        h = layer(h)
        if isinstance(layer, nn.Linear):
            outputs.append(h)
    p = h.detach().softmax(1)
    total = 0.0
    for c in range(p.shape[1]):
        s = p[:, c : c + 1].sqrt() * (F.one_hot(torch.tensor(c), p.shape[1]).to(p) - p)
        deltas = torch.autograd.grad(h, outputs, s, retain_graph=True)
        for a, delta in zip(inputs, deltas, strict=True):
            total += float(((a.square().sum(1) + 1) * delta.square().sum(1)).sum())
    return total / len(double.x)
