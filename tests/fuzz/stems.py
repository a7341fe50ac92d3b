"""Where a network meets its data: vectors, images, tokens, sequences."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.fuzz.draws import NO_SECOND_DERIVATIVE, Draw, Stem, activation


def vectors(d: Draw, n: int) -> Stem:
    i, width = d.random.sample((3, 5, 6, 7), 2)
    kind = d.pick(("linear", "linear", "bilinear", "no bias"))
    if kind == "bilinear":
        j = d.pick((2, 3))
        inputs = (d.normal(n, 3), d.normal(n, j))
        return Stem(nn.Bilinear(3, j, width), width, [kind], "", inputs, (0, 0))
    first = nn.Linear(i, width, bias=kind != "no bias")
    return Stem(nn.Sequential(first, activation(d)), width, [kind], "", (d.normal(n, i),))


def feature_sequences(d: Draw, n: int) -> Stem:
    i, t, width = d.random.sample((3, 5, 6, 7), 3)
    module = nn.Sequential(nn.Linear(i, width), activation(d))
    return Stem(module, width, ["linear on sequences"], "", (d.normal(n, t, i),), layout="seq")


# --- images ---


def _norm(d: Draw, channels: int, dims: int) -> nn.Module | None:
    batch = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims - 1]
    instance = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[dims - 1]
    kind = d.pick(("", "", "batch", "group", "instance", "tracked"))
    if kind == "batch":
        cls = type("PlainBatchNorm", (PlainStatistics, batch), {}) if d.honest else batch
        return cls(channels, affine=d.chance(0.7))
    if kind == "group":
        return nn.GroupNorm(3 if channels % 3 == 0 else 1, channels)
    if kind in ("instance", "tracked"):
        cls = type("PlainInstanceNorm", (PlainStatistics, instance), {}) if d.honest else instance
        return cls(channels, affine=d.chance(0.7), track_running_stats=kind == "tracked")
    return None


class PlainStatistics:
    """Batch and instance norms as formulas.

    The gradient that PyTorch 2.13 gives on a CPU for one image is false where it comes in as
    channels last, e.g. after `flatten(2).transpose(1, 2)`.
    """

    def forward(self, x: Tensor) -> Tensor:
        own: Any = self
        shape, places = (1, -1, *[1] * (x.ndim - 2)), tuple(range(2, x.ndim))
        if own.training and isinstance(own, nn.modules.batchnorm._BatchNorm):
            h: Tensor = super().forward(x)  # type: ignore[misc]
            return h
        if own.running_mean is None or own.training:
            if x[0, 0].numel() == 1:  # so that a draw that PyTorch refuses is given up for both
                raise ValueError("Expected more than 1 spatial element when training")
            mean = x.mean(places, keepdim=True)
            variance = (x - mean).square().mean(places, keepdim=True)
        else:
            mean, variance = own.running_mean.view(shape), own.running_var.view(shape)
        h = (x - mean) / (variance + own.eps).sqrt()
        return h if own.weight is None else h * own.weight.view(shape) + own.bias.view(shape)


def _pool(d: Draw, dims: int) -> nn.Module | None:
    kind = d.pick(("", "Max", "Avg", "AdaptiveAvg", "AdaptiveMax", "LP"))
    if not kind:
        return None
    cls = getattr(nn, f"{kind}Pool{dims}d")
    if kind.startswith("Adaptive"):
        return cls(d.pick((1, 2)))
    if kind == "LP":
        return cls(2, 2)
    return cls(2, stride=d.pick((1, 2)))


class Convolutional(nn.Module):
    """Convolution, norm, activation, pooling, and what becomes of places."""

    def __init__(self, body: nn.Sequential, end: str) -> None:
        super().__init__()
        self.body, self.end = body, end

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        if self.end == "pixels":
            return h
        h = h.flatten(2)
        if self.end == "seq":
            return h.transpose(1, 2)
        return h.mean(-1) if self.end == "mean" else h.logsumexp(-1)


def images(d: Draw, n: int) -> Stem:
    dims = d.pick((1, 1, 2, 2, 3))
    transposed = d.chance(0.3)
    groups = d.pick((1, 1, 3))
    cin, cout = (3, d.pick((3, 6))) if groups == 3 else (d.pick((1, 2, 3)), d.pick((3, 5, 6)))
    most = {1: (2, 3, 3), 2: (2, 3), 3: (1, 2)}[dims]
    kernel = tuple(d.pick(most) for _ in range(dims))
    spatial = tuple(d.random.sample((5, 6, 7) if dims < 3 else (3, 5, 6), dims))
    settings = {"stride": d.pick((1, 1, 2)), "groups": groups, "bias": d.chance(0.8)}
    settings["dilation"] = d.pick((1, 1, 2)) if dims < 3 else 1
    if transposed:
        cls = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dims - 1]
        settings["output_padding"] = 1 if max(settings["stride"], settings["dilation"]) > 1 else 0
    else:
        cls = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
        settings["padding"] = d.pick((0, 1, "same") if settings["stride"] == 1 else (0, 1))
        modes = ("zeros", "zeros", "reflect", "circular", "replicate")
        settings["padding_mode"] = d.pick(modes)
    parts = [cls(cin, cout, kernel, **settings), _norm(d, cout, dims), activation(d)]
    end = d.pick(("mean", "mean", "logsumexp", "seq", "pixels"))
    parts.append(_pool(d, dims) if end not in ("seq", "pixels") else None)
    body = nn.Sequential(*[part for part in parts if part is not None])
    tags = [f"{cls.__name__}{'/' + str(groups) if groups > 1 else ''}"]
    tags += [type(part).__name__ for part in parts[1:] if part is not None]
    layout = end if end in ("seq", "pixels") else "flat"
    x = d.normal(n, cin, *spatial)
    if dims == 2 and d.chance(0.2):
        x, tags = x.contiguous(memory_format=torch.channels_last), [*tags, "channels last"]
    is_false = any(isinstance(part, nn.InstanceNorm2d | nn.InstanceNorm3d) for part in parts)
    if any(isinstance(part, nn.BatchNorm2d | nn.BatchNorm3d) for part in parts):
        is_false = end == "seq"
    defect = "false gradient in PyTorch" if is_false else ""
    return Stem(Convolutional(body, end), cout, tags, defect, (x,), layout=layout)


# --- tokens ---


class Tokens(nn.Module):
    """Embedding, maybe positions, maybe a mask, and what becomes of positions."""

    def __init__(self, d: Draw, vocabulary: int, width: int, padding: int | None, end: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, padding_idx=padding)
        self.positions = nn.Parameter(torch.zeros(9, width)) if d.chance(0.3) else None
        self.act, self.end, self.padding = activation(d), end, padding

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        h = self.embed(ids)
        if self.positions is not None:
            h = h + self.positions[: ids.shape[1]]
        h = self.act(h)
        if mask is None and self.padding is not None:
            mask = ids != self.padding
        if mask is None:
            return h if self.end == "seq" else h.mean(1)
        weight = mask[..., None].to(h.dtype)
        if self.end == "seq":
            return (h * weight).cumsum(1) / 3
        return (h * weight).sum(1) / weight.sum(1).clamp(min=1)


def late_padding(d: Draw, n: int, t: int) -> Tensor:
    """Draw a mask that is all true in the first samples, as the first batches of a user may be."""
    lengths = d.integers(1, t + 1, n)
    if d.chance(0.6):
        lengths[: n // 2] = t
    return torch.arange(t) < lengths[:, None]


def tokens(d: Draw, n: int) -> Stem:
    vocabulary, t, width = d.random.sample((5, 6, 7, 9), 1) + d.random.sample((3, 5, 6), 2)
    padding = d.pick((None, 0, 0, vocabulary - 1))
    end = d.pick(("pooled", "pooled", "seq"))
    module = Tokens(d, vocabulary, width, padding, end)
    ids, mask = d.integers(int(d.chance(0.7)), vocabulary, n, t), late_padding(d, n, t)
    if padding is not None:
        ids = ids.masked_fill(~mask, padding)
    inputs = (ids, mask) if d.chance(0.5) else (ids,)
    tags = ["embedding", f"padding_idx={padding}", "mask" if len(inputs) > 1 else "no mask"]
    layout = "seq" if end == "seq" else "flat"
    return Stem(module, width, tags, "", inputs, (0,) * len(inputs), layout)


class Bag(nn.Module):
    """`nn.EmbeddingBag`; in the truth the same by plain indexing, which has all derivatives."""

    def __init__(self, d: Draw, vocabulary: int, width: int, mode: str) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(vocabulary, width, mode=mode)
        self.honest, self.mode = d.honest, mode

    def forward(self, ids: Tensor, weights: Tensor | None = None) -> Tensor:
        if not self.honest:
            return self.bag(ids, per_sample_weights=weights)
        rows = F.embedding(ids, self.bag.weight)
        if weights is not None:
            rows = rows * weights[..., None]
        return rows.sum(1) if self.mode == "sum" else rows.mean(1)


def bags(d: Draw, n: int) -> Stem:
    vocabulary, t, width = d.pick((7, 9)), d.pick((3, 5)), d.pick((3, 6))
    weighted = d.chance(0.3)
    module = Bag(d, vocabulary, width, "sum" if weighted else d.pick(("sum", "mean")))
    ids = d.integers(0, vocabulary, n, t)
    inputs = (ids, d.normal(n, t)) if weighted else (ids,)
    return Stem(module, width, ["EmbeddingBag"], NO_SECOND_DERIVATIVE, inputs, (0,) * len(inputs))


# --- attention ---


class Attention(nn.Module):
    """`nn.MultiheadAttention`, or `scaled_dot_product_attention` by hand."""

    def __init__(self, d: Draw, width: int, kind: str, end: str) -> None:
        super().__init__()
        self.kind, self.end = kind, end
        self.dropout = nn.Dropout(0.3)
        if kind == "module":
            self.attention = nn.MultiheadAttention(
                width, d.pick((1, 3)), batch_first=True, dropout=0.2, bias=d.chance(0.7)
            )
        else:
            self.query, self.key = nn.Linear(width, 3), nn.Linear(width, 3, bias=False)
            self.value = nn.Linear(width, width)
        self.is_causal, self.needs_weights = d.chance(0.4), d.chance(0.5)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        t = x.shape[1]
        future = torch.ones(t, t, dtype=torch.bool).triu(1) if self.is_causal else None
        if self.kind == "module":
            h, _ = self.attention(
                x, x, x,
                key_padding_mask=None if mask is None else ~mask,
                attn_mask=future,
                need_weights=self.needs_weights,
            )  # fmt: skip
        else:
            keep = None if mask is None else mask[:, None, :].expand(-1, t, -1)
            if future is not None:
                keep = ~future if keep is None else keep & ~future
            h = F.scaled_dot_product_attention(
                self.query(x), self.key(x), self.value(x), attn_mask=keep
            )
        h = x + self.dropout(h)
        if self.end == "seq":
            return h
        if mask is None:
            return h.mean(1)
        weight = mask[..., None].to(h.dtype)
        return (h * weight).sum(1) / weight.sum(1)


def attention(d: Draw, n: int) -> Stem:
    t, width = d.pick((5, 6, 7)), 3
    kind, end = d.pick(("module", "by hand", "layer")), d.pick(("pooled", "seq"))
    layout = "seq" if end == "seq" else "flat"
    x, mask = d.normal(n, t, width), late_padding(d, n, t)
    if kind == "layer":
        module = nn.TransformerEncoderLayer(
            width,
            3,
            5,
            batch_first=True,
            norm_first=d.chance(0.5),
            activation=d.pick((F.gelu, F.relu)),
        )
        return Stem(module, width, ["TransformerEncoderLayer"], "", (x,), layout="seq")
    inputs = (x, mask) if d.chance(0.5) else (x,)
    module = Attention(d, width, kind, end)
    tags = [f"attention {kind}", "mask" if len(inputs) > 1 else "no mask"]
    tags += ["causal"] if module.is_causal else []
    return Stem(module, width, tags, "", inputs, (0,) * len(inputs), layout)


# --- recurrent layers ---


class Recurrent(nn.Module):
    """An RNN, GRU or LSTM, batch first or not, with packed sequences or not."""

    def __init__(self, cell: nn.RNNBase, end: str) -> None:
        super().__init__()
        self.cell, self.end = cell, end

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        first = self.cell.batch_first
        places = x.shape[1 if first else 0]
        if lengths is not None:
            x = pack_padded_sequence(x, lengths.cpu(), batch_first=first, enforce_sorted=False)
        h, _ = self.cell(x)
        if lengths is not None:
            h, _ = pad_packed_sequence(h, batch_first=first, total_length=places)
        h = h if first else h.transpose(0, 1)
        return h if self.end == "seq" else h.mean(1)


def recurrent(d: Draw, n: int) -> Stem:
    cls = d.pick((nn.RNN, nn.GRU, nn.LSTM))
    i, width = d.random.sample((2, 3), 2) if cls is not nn.RNN else d.random.sample((3, 5), 2)
    t = 6 if width == 5 else 5
    batch_first = d.chance(0.6)
    bidirectional = cls is nn.RNN and d.chance(0.3)
    end = d.pick(("pooled", "seq")) if batch_first else "pooled"
    cell = cls(i, width, batch_first=batch_first, bidirectional=bidirectional)
    is_packed = d.chance(0.3) and end == "pooled"
    x = d.normal(n, t, i) if batch_first else d.normal(t, n, i)
    lengths = d.integers(1, t + 1, n)
    tags = [cls.__name__, "batch first" if batch_first else "time first"]
    tags += ["packed"] if is_packed else []
    inputs, dim = (x, lengths) if is_packed else (x,), 0 if batch_first else 1
    dims = (dim, 0)[: len(inputs)]
    layout = "seq" if end == "seq" else "flat"
    module = Recurrent(cell, end)
    return Stem(module, width * (2 if bidirectional else 1), tags, "", inputs, dims, layout)


STEMS = (
    vectors, vectors, vectors, feature_sequences, images, images, images, tokens, tokens, bags,
    attention, attention, recurrent, recurrent,
)  # fmt: skip
