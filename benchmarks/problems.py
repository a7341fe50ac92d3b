"""Networks with synthetic, class-structured data, shortly trained."""

import copy
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eigenscape_papers import networks

CLASSES, TOKENS, LENGTH = 10, 65, 32
Device = torch.device | str


@dataclass(frozen=True)
class Problem:
    """A trained network and all of its data, in one batch or cut into chunks."""

    name: str
    model: nn.Module
    x: Tensor
    y: Tensor
    loss: float
    first: str | None  # the first layer, whose input needs no derivative
    chunk: int | None = None  # samples at once; all of them, if nothing is said

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

    def cut(self, chunk: int | None) -> "Problem":
        """Return the same problem with its data in chunks."""
        return replace(self, chunk=chunk)

    def batches(self) -> list[tuple[Tensor, Tensor]]:
        """Return the data as they are cut."""
        size = self.chunk or len(self.x)
        return list(zip(self.x.split(size), self.y.split(size), strict=True))

    def chunks(self, fewest: int = 32, most_pieces: int = 64) -> list[int]:
        """List the sizes that cut the data evenly, so that no way of averaging matters."""
        N = len(self.x)
        smallest = min(N, max(fewest, N // most_pieces))
        return [size for size in range(smallest, N + 1) if N % size == 0]

    def gradient(self) -> list[Tensor]:
        """The unit of all times: the gradient over all data, by plain autograd."""
        params = list(self.model.parameters())
        total: list[Tensor] = []
        for x, y in self.batches():
            loss = F.cross_entropy(self.model(x), y, reduction="sum") / self.y.numel()
            parts = torch.autograd.grad(loss, params)
            if not total:
                total = list(parts)
                continue
            for sum_, part in zip(total, parts, strict=True):
                sum_ += part
        return total

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
    """Two hidden layers with ReLU."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        for i, (a, b) in enumerate([(inputs, width), (width, width), (width, CLASSES)]):
            self.add_module(f"fc{i + 1}", nn.Linear(a, b))
            if i < 2:
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

    def __init__(self, width: int, heads: int) -> None:
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

    def __init__(self, depth: int, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(TOKENS, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
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


def mlp(n: int, inputs: int = 784, width: int = 200, *, device: Device = "cpu") -> Problem:
    torch.manual_seed(0)
    y = torch.arange(n) % CLASSES
    x = 0.15 * torch.randn(CLASSES, inputs)[y] + torch.randn(n, inputs)
    return _trained("mlp", MLP(inputs, width), x, y, device, goal=0.4, first="fc1")


def lenet(n: int, *, total: int | None = None, device: Device = "cpu") -> Problem:
    """LeNet5 trained on n images; with `total`, there are more of them than it was trained on."""
    torch.manual_seed(0)
    x, y = _images(total or n, 32)
    trained = _trained("lenet", LeNet5(), x[:n], y[:n], device, goal=0.4, first="conv1")
    return replace(trained, x=x.to(device), y=y.to(device))


def resnet(
    n: int,
    network: str,
    side: int,
    *,
    name: str = "resnet",
    steps: int = 2000,
    device: Device = "cpu",
) -> Problem:
    """A ResNet18 of the package without BatchNorm."""
    torch.manual_seed(0)
    x, y = _images(n, side)
    model = networks.build(network, input_shape=(3, side, side), num_classes=CLASSES)
    return _trained(name, model, x, y, device, goal=0.4, first="conv1", steps=steps)


def _images(n: int, side: int) -> tuple[Tensor, Tensor]:
    """Noisy images around ten coarse patterns."""
    y = torch.arange(n) % CLASSES
    coarse = torch.randn(CLASSES, 3, 8, 8)
    x = 0.7 * F.interpolate(coarse, scale_factor=side / 8)[y] + torch.randn(n, 3, side, side)
    return x, y


def gpt(
    n: int,
    depth: int,
    width: int,
    *,
    heads: int = 4,
    length: int = LENGTH,
    name: str = "gpt",
    steps: int = 2000,
    device: Device = "cpu",
) -> Problem:
    """Sequences of a random chain in which each token has one likely and one rare successor."""
    torch.manual_seed(0)
    likely, rare = torch.randperm(TOKENS), torch.randperm(TOKENS)
    text = [torch.randint(TOKENS, (n,))]
    for _ in range(length):
        text.append(torch.where(torch.rand(n) < 0.85, likely[text[-1]], rare[text[-1]]))
    tokens = torch.stack(text, dim=1)
    model = GPT(depth, width, heads, length)
    x, y = tokens[:, :-1], tokens[:, 1:]
    return _trained(name, model, x, y, device, goal=0.8, first=None, steps=steps)


def fused(problem: Problem) -> Problem:
    """The same GPT with the same weights, calling `F.scaled_dot_product_attention`."""
    return replace(problem, name="gpt-sdpa", model=copy.deepcopy(problem.model).fuse(True))


def dong(n: int, size: int, hidden: int = 8, *, device: Device = "cpu") -> Problem:
    """As many classes as inputs, few hidden units, no biases, at initialisation."""
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("fc1", nn.Linear(size, hidden, bias=False))
    model.add_module("relu", nn.ReLU())
    model.add_module("fc2", nn.Linear(hidden, size, bias=False))
    x, y = torch.randn(n, size), torch.randint(size, (n,))
    return _trained("dong", model, x, y, device, goal=0.0, first="fc1", steps=1)


def _trained(
    name: str,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    device: Device,
    goal: float,
    first: str | None,
    steps: int = 2000,
) -> Problem:
    """Take steps of Adam over all data until the loss is at the goal: neither random nor zero."""
    model, x, y = model.to(device), x.to(device).contiguous(), y.to(device).contiguous()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(steps):
        loss = F.cross_entropy(model(x), y)
        if loss.item() <= goal or step == steps - 1:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    optimizer.zero_grad()
    return Problem(name, model.eval(), x, y, loss.item(), first)
