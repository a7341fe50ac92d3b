"""Models that take labels and return their own loss, as libraries' do, in plain torch."""

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

V, T, N = 7, 5, 6


def shifted(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of the next token."""
    return F.cross_entropy(logits[:, :-1].reshape(-1, V), labels[:, 1:].reshape(-1))


def unshifted(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of the labels where they stand."""
    return F.cross_entropy(logits.reshape(-1, V), labels.reshape(-1))


class TokenNet(nn.Module):
    """Logits of each position, and a loss where labels are given."""

    loss = staticmethod(unshifted)

    def __init__(self, extra: float = 0.0) -> None:
        super().__init__()
        self.embed, self.head, self.extra = nn.Embedding(V, 4), nn.Linear(4, V), extra

    def logits(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.embed(ids).cumsum(1)))
        return logits

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        z = self.logits(input_ids)
        if labels is None:
            return SimpleNamespace(logits=z, loss=None)
        # A term of a whole batch, as a router's: the square of a mean.
        balance = z.softmax(-1).mean((0, 1)).square().sum()
        return SimpleNamespace(logits=z, loss=type(self).loss(z, labels) + self.extra * balance)


class TinyForCausalLM(TokenNet):
    """Known by its name to predict the next token."""

    loss = staticmethod(shifted)


class SilentForCausalLM(TokenNet):
    """A causal model that returns logits alone."""

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.logits(input_ids)


class PairNet(TokenNet):
    """Returns (logits, loss), and without targets the logits of the last position only."""

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Any:
        z = self.logits(idx)
        return (z[:, [-1]], None) if targets is None else (z, unshifted(z, targets))


class EncoderDecoder(TokenNet):
    """Its decoder is fed the labels moved by one; without them, the inputs moved by one."""

    config = SimpleNamespace(is_encoder_decoder=True)

    def forward(
        self, input_ids: Tensor, decoder_input_ids: Tensor | None = None, labels: Any = None
    ) -> Any:
        source = input_ids if labels is None else labels.clamp(min=0)
        if decoder_input_ids is None:
            decoder_input_ids = F.pad(source[:, :-1], (1, 0))
        z = self.logits(decoder_input_ids) + self.embed(input_ids).sum((1, 2))[:, None, None]
        return SimpleNamespace(logits=z, loss=None if labels is None else unshifted(z, labels))


class LossOnly(TokenNet):
    """Returns nothing but its loss, which is a mean over samples."""

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        z = self.logits(input_ids)[:, -1]
        return (z - F.one_hot(labels, V)).square().sum(1).mean()


def text(*, padded: bool = True, count: int = N) -> dict[str, Tensor]:
    """Return tokens and labels as they stand in the text; some sentences are short."""
    ids = torch.randint(0, V, (count, T), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    if padded:
        labels[: count // 2, 3:] = -100
    return {"input_ids": ids, "labels": labels}


def parts(data: dict[str, Tensor], *sizes: int) -> list[dict[str, Tensor]]:
    """Cut data into batches."""
    columns = {name: tensor.split(sizes) for name, tensor in data.items()}
    return [{name: column[i] for name, column in columns.items()} for i in range(len(sizes))]
