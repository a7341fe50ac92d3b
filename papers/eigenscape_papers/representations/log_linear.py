"""Log-linear word models (chapter 3 of the thesis): logits are inner products.

Letters: N contexts with states v (rows), n words with embeddings v_j (rows); z_j = ⟨v, v_j⟩,
p(j) = exp(z_j)/Z. The *bulk* of a context is all words but the k most probable, Z_bulk their part
of Z.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.device import full_precision
from eigenscape.errors import (
    InvalidArgumentError,
    ShapeError,
    WrongTypeError,
    require_count,
    require_not_negative,
)
from eigenscape_papers.representations._checks import (
    require_matrix,
    require_sizes,
    require_states,
    widened,
)

# Logits of one chunk: 128 MB in float64.
_LOGITS = 2**24


@dataclass(frozen=True, eq=False)
class LogLinear:
    """A model of the next word: what it makes of each context, and its words.

    States and words of half precision are multiplied, and give their results, in float32.

    Attributes:
        states: One row for each context (N, d).
        embedding: One row for each word (n, d).

    Examples:
        >>> words = torch.tensor([[3.0, 1.0], [1.0, 1.0]]).log()
        >>> model = LogLinear(torch.tensor([[1.0, 0.0]]), words)
        >>> model.log_probabilities().exp().round(decimals=4).tolist()
        [[0.75, 0.25]]
    """

    states: Tensor
    embedding: Tensor

    def __post_init__(self) -> None:
        """Refuse what has no inner products."""
        words = require_matrix(self.embedding, "LogLinear(embedding)")
        states = require_states(self.states, "LogLinear(states)", columns=words.shape[1])
        if states.dtype != words.dtype or states.device != words.device:
            raise ShapeError(
                "`LogLinear(states, embedding)` must share dtype and device; got "
                f"{states.dtype} on {states.device} and {words.dtype} on {words.device}."
            )

    @property
    def num_words(self) -> int:
        """Size of the vocabulary, n."""
        return len(self.embedding)

    @full_precision()
    def logits(self) -> Tensor:
        """Return ⟨v, v_j⟩ (N, n)."""
        return widened(self.states) @ widened(self.embedding).T

    def log_probabilities(self) -> Tensor:
        """Return log p(j) (N, n)."""
        return self.logits().log_softmax(1)

    def with_word_lowered(self, word: int, amount: float) -> "LogLinear":
        """Return the model with one word's logit lowered everywhere (Theorem 3.3.1).

        A word that is rare anyway can be lowered far at next to no cost in divergence, see
        `lowered_word_divergence`; a task that adds up logits loses what that word was to it.

        Args:
            word: Which, from 0.
            amount: s.

        Returns:
            A log-linear model with one dimension more.

        Raises:
            InvalidArgumentError: If there is no such word.
        """
        require_count(word, "with_word_lowered(word)", at_least=0, at_most=self.num_words - 1)
        extra = torch.zeros_like(self.embedding[:, :1])
        extra[word] = -amount
        return self._extended(extra)

    def with_logits_shifted(self, amount: float) -> "LogLinear":
        """Return the model with all logits shifted alike, which changes no probability.

        Shifted below all thresholds, a task that sees logits through ReLUs sees nothing (Theorem
        3.3.2).

        Args:
            amount: What is added to every logit.

        Returns:
            A log-linear model with one dimension more.
        """
        return self._extended(torch.full_like(self.embedding[:, :1], amount))

    def _extended(self, extra: Tensor) -> "LogLinear":
        ones = torch.ones_like(self.states[:, :1])
        return LogLinear(
            torch.cat([self.states, ones], dim=1), torch.cat([self.embedding, extra], dim=1)
        )


def word_divergences(teacher: LogLinear, student: LogLinear) -> Tensor:
    """Return KL(p*‖p) of each context.

    Args:
        teacher: p*.
        student: p, of the same contexts and words; its dimension may be another.

    Returns:
        The divergences (N,), in nats.

    Raises:
        ShapeError: If the vocabularies or the contexts do not match.

    Examples:
        >>> model = LogLinear(torch.eye(2), torch.eye(2))
        >>> word_divergences(model, model.with_logits_shifted(-3.0)).abs().max().item() < 1e-7
        True
    """
    require_same_words(teacher, student, "word_divergences")
    log_p, log_q = teacher.log_probabilities(), student.log_probabilities()
    return (log_p.exp() * (log_p - log_q)).sum(1)


def lowered_word_divergence(probability: Tensor, amount: float) -> Tensor:
    """Return KL(p*‖p) where p is p* with one logit lowered by s: s p⁻ + log(1 − p⁻(1 − e^{−s})).

    It is below s p⁻; the thesis has 2s p⁻. Computed in float64, and exactly 0 at p⁻ = 0 and 1.

    Args:
        probability: p⁻, the word's probability under p*; a tensor of any shape.
        amount: s ≥ 0.

    Returns:
        The divergence, of the same shape.

    Raises:
        WrongTypeError: If the probability is no tensor of floating point.
        InvalidArgumentError: If the amount is negative or not finite, or a probability is none.

    Examples:
        >>> p = torch.tensor(0.01, dtype=torch.float64)
        >>> round(lowered_word_divergence(p, 5.0).item(), 6)
        0.040018
    """
    require_not_negative(amount, "lowered_word_divergence(amount)")
    if not isinstance(probability, Tensor) or not probability.is_floating_point():
        kind = probability.dtype if isinstance(probability, Tensor) else type(probability).__name__
        raise WrongTypeError(
            f"`lowered_word_divergence(probability)` must be a floating-point tensor; got {kind}."
        )
    if not bool(((probability >= 0) & (probability <= 1)).all()):
        raise InvalidArgumentError(
            "`lowered_word_divergence(probability)` must lie from 0 to 1 everywhere. Pass "
            "`model.log_probabilities().exp()`, not logits."
        )
    p, s = probability.double(), float(amount)
    below = s * p + (p * math.expm1(-s)).log1p()
    # The same in 1 − p, which is exact above 1/2; e^s beyond e^700 would overflow.
    complement, rise = 1.0 - p, min(s, 700.0)
    above = (complement * math.expm1(rise)).log1p() + (s - rise) * (complement > 0) - s * complement
    return torch.where(p <= 0.5, below, above).to(probability)


@full_precision()
def log_bulk_partitions(states: Tensor, embedding: Tensor, num_top: Sequence[int]) -> Tensor:
    """Return log Z_bulk of each context, for several sizes of the top.

    Cost: one product of states and embedding, and a sort of each row. Logits are formed for a few
    contexts at a time, in float32 where the model is of half precision, and summed in float64.

    Args:
        states: (N, d).
        embedding: (n, d).
        num_top: How many of the most probable words are left out, one column each; 0 is log Z.

    Returns:
        (N, len(num_top)), in float64.

    Raises:
        WrongTypeError: If `num_top` is a single number.
        ShapeError: If states and embedding do not fit.
        InvalidArgumentError: If a bulk would be empty.

    Examples:
        >>> v, words = torch.ones(1, 1), torch.log(torch.tensor([[1.0], [2.0], [4.0]]))
        >>> log_bulk_partitions(v, words, (0, 1)).exp().round(decimals=4).tolist()
        [[7.0, 3.0]]
    """
    require_sizes(num_top, "log_bulk_partitions(num_top)")
    model = LogLinear(states, embedding)
    if not num_top:
        raise InvalidArgumentError("`log_bulk_partitions(num_top)` must name one size or more.")
    for size in num_top:
        call = "log_bulk_partitions(num_top)"
        require_count(size, call, at_least=0, at_most=model.num_words - 1)
    log_bulks, words = [], widened(embedding.detach()).T
    for chunk in states.detach().split(max(1, _LOGITS // model.num_words)):
        z = (widened(chunk) @ words).double()
        if any(num_top):
            z = z.sort(dim=1, descending=True).values
        log_bulks.append(torch.stack([z[:, size:].logsumexp(1) for size in num_top], dim=1))
    return torch.cat(log_bulks)


def require_same_words(teacher: LogLinear, student: LogLinear, call: str) -> None:
    """Refuse two models of different words or contexts.

    Args:
        teacher: One.
        student: The other.
        call: Who asks.

    Raises:
        ShapeError: If they do not match.
    """
    if teacher.num_words != student.num_words:
        raise ShapeError(
            f"`{call}(teacher, student)` must have one vocabulary; got {teacher.num_words} and "
            f"{student.num_words} words. Compare models of the same tokenizer."
        )
    if len(teacher.states) != len(student.states):
        raise ShapeError(
            f"`{call}(teacher, student)` must see the same contexts; got {len(teacher.states)} and "
            f"{len(student.states)}."
        )
