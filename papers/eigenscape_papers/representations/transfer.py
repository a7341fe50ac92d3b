"""From words to tasks: what a small divergence says about a task (Theorem 3.5.7 of the thesis).

Letters as in `log_linear.py`; starred things are the teacher's. The task is told by the sign of
f* = Σ_{j<k} a_j σ(⟨v*, v_j* − v₀*⟩ − b_j), σ the ReLU, v₀ the anchor; the student's f is the same
without stars. The first k words are those of interest, all others the bulk.

γ is the margin, |f*| ≥ γ on the task; Γ = γ/(k max|a|); p_b the least Z*_bulk/Z*; ε_b the largest
error of an anchor, of both models; μ the share of contexts that the task is about.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.errors import InvalidArgumentError, ShapeError, require_positive
from eigenscape.records import Record, Status
from eigenscape_papers.representations._checks import require_matrix, require_tensor, widened
from eigenscape_papers.representations.anchor import fit_anchors
from eigenscape_papers.representations.log_linear import (
    LogLinear,
    require_same_words,
    word_divergences,
)

PRINTED_CONSTANT = 288.0
# The proof bounds Σ|p* − p|, which is twice the distance in total variation that Pinsker's
# inequality is about; the constant grows by 4.
RIGOROUS_CONSTANT = 1152.0


@dataclass(frozen=True, eq=False)
class Transfer(Record):
    """A student beside its teacher: divergence over words, errors in the task, and the bound.

    Attributes:
        divergence: ε_KL, mean over all contexts.
        error_rate: ε_CLS, share of the task's contexts with f f* < 0.
        bound: ε_KL · 1152/(μ p_b² Γ²); infinite where the theorem does not apply.
        applies: Whether the theorem's conditions hold: 8ε_b < Γ < 6, min b ≥ ε_b − log 4k.
        normalised_margin: Γ.
        bulk_probability: p_b.
        anchor_error: ε_b.
        share: μ.
        num_wrong: Contexts of the task with f f* < 0.
        num_empty: How many of those have no word in S(x); Lemma 3.5.10 says none.
        obstacle_slack: Least slack of Lemma 3.5.11, over those; infinite for none.
        lemma_slack: Least Σ|p* − p| less the bound of Lemma 3.5.9, over those; infinite for none.
        bulk_slack: Least slack of Lemma 3.5.12, over all contexts.
        word_slack: Least slack of Lemma 3.5.13, over all words in S(x); infinite for none.
    """

    divergence: float
    error_rate: float
    bound: float
    applies: bool
    normalised_margin: float
    bulk_probability: float
    anchor_error: float
    share: float
    num_wrong: int
    num_empty: int
    obstacle_slack: float
    lemma_slack: float
    bulk_slack: float
    word_slack: float

    @property
    def tightness(self) -> float:
        """ε_CLS over its bound; at most 1 where the theorem applies."""
        return self.error_rate / self.bound if self.bound > 0 else 0.0


def anchored_scores(model: LogLinear, anchor: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return f = Σ a_j σ(⟨v, v_j − v₀⟩ − b_j) of each context.

    Args:
        model: States and words; the first k words count.
        anchor: v₀ (d,). Zero for the task of Theorem 3.3.2.
        a: Coefficients (k,).
        b: Thresholds (k,).

    Returns:
        The scores (N,).

    Raises:
        WrongTypeError: If one of them is no tensor.
        ShapeError: If the sizes do not fit.

    Examples:
        >>> model = LogLinear(torch.eye(2), torch.tensor([[2.0, 5.0], [0.0, 0.0]]))
        >>> anchor, one = torch.tensor([0.0, 1.0]), torch.ones(1)
        >>> anchored_scores(model, anchor, one, one).tolist()
        [1.0, 3.0]
    """
    _require_task(a, b, model.num_words, "anchored_scores")
    require_tensor(anchor, "anchored_scores(anchor)")
    if anchor.shape != model.states.shape[1:]:
        raise ShapeError(
            f"`anchored_scores(anchor)` must be ({model.states.shape[1]},); got "
            f"{tuple(anchor.shape)}."
        )
    states = widened(model.states)
    a, b, anchor = (tensor.to(states) for tensor in (a, b, anchor))
    offsets = states @ (widened(model.embedding[: len(a)]) - anchor).T
    return (offsets - b).relu() @ a


def misclassified_gap(
    *, normalised_margin: float, anchor_error: float, least_threshold: float, num_words: int
) -> float:
    """Return the minimum in Lemma 3.5.9, exactly.

    p_b times it is the least that Σ|p* − p| can be in a context with f f* < 0. With Λ = Γ/2 − 2ε_b
    and c = k e^{min b − ε_b} it is the least of 1 − e^{−ε} + c e^{−ε}(e^{σ(Λ−ε)} − 1) over ε ≥ 0.
    It stands at e^ε = 2c e^Λ/(1 + c), kept within [0, Λ].

    Args:
        normalised_margin: Γ.
        anchor_error: ε_b.
        least_threshold: min b.
        num_words: k.

    Returns:
        The minimum; 0 where ε_b is too large for the margin.

    Examples:
        >>> gap = misclassified_gap(
        ...     normalised_margin=2.0, anchor_error=0.0, least_threshold=0.0, num_words=1
        ... )
        >>> round(gap, 6)  # c = 1, so that ε = Λ = 1
        0.632121
    """
    room = normalised_margin / 2 - 2 * anchor_error
    if room <= 0:
        return 0.0
    c = num_words * math.exp(least_threshold - anchor_error)
    at = min(max(room + math.log(2 * c / (1 + c)), 0.0), room)
    return -math.expm1(-at) + c * math.exp(-at) * math.expm1(room - at)


def transfer(
    teacher: LogLinear, student: LogLinear, *, a: Tensor, b: Tensor, margin: float
) -> Transfer:
    """Hold a student against the transfer theorem.

    Contexts are those of pre-training; the task is about those of them with |f*| ≥ γ. Anchors are
    fitted to log Z_bulk by least squares, for each model by itself.

    Args:
        teacher: The starred model.
        student: The other, of the same contexts and words.
        a: Coefficients of the first k words (k,).
        b: Their thresholds (k,).
        margin: γ.

    Returns:
        Both sides of the theorem, whether it applies, and the slack of its lemmas.

    Raises:
        WrongTypeError: If coefficients or thresholds are no tensor.
        ShapeError: If the models do not match, or coefficients and thresholds do not.
        InvalidArgumentError: If no word is left for the bulk, or no context has the margin.

    Examples:
        >>> draw = torch.Generator().manual_seed(0)
        >>> v = torch.cat([torch.randn(99, 2, generator=draw), torch.ones(99, 1)], 1).double()
        >>> words = torch.zeros(20, 3, dtype=v.dtype)
        >>> words[0, 0] = words[1, 1] = 2.0
        >>> a, b = torch.tensor([1.0, -1.0]).to(v), torch.tensor([-2.0, -2.0]).to(v)
        >>> same = transfer(LogLinear(v, words), LogLinear(v, words), a=a, b=b, margin=0.5)
        >>> same.applies, same.error_rate, round(same.divergence, 12), same.anchor_error < 1e-9
        (True, 0.0, 0.0, True)
    """
    call = "transfer"
    require_same_words(teacher, student, call)
    _require_task(a, b, teacher.num_words, call)
    gamma, k = require_positive(margin, f"{call}(margin=...)"), len(a)
    if k >= teacher.num_words:
        raise InvalidArgumentError(
            f"`{call}(a=...)` takes {k} of {teacher.num_words} words; the bulk needs some too."
        )
    teacher, student = (
        LogLinear(widened(model.states), widened(model.embedding)) for model in (teacher, student)
    )
    a, b = a.to(teacher.states), b.to(teacher.states)
    sides = [_side(model, a, b) for model in (teacher, student)]
    f_star, f = sides[0].scores, sides[1].scores
    task = f_star.abs() >= gamma
    if not bool(task.any()):
        raise InvalidArgumentError(
            f"`{call}(margin=...)` of {gamma:g} leaves no context; the largest |f*| is "
            f"{float(f_star.abs().max()):.4g}."
        )
    wrong = task & (f * f_star < 0)
    Gamma = gamma / (k * float(a.abs().max()))
    p_b = float(sides[0].log_bulk_share.exp().min())
    epsilon_b = max(side.anchor_error for side in sides)
    mu = float(task.double().mean())
    gaps = (teacher.log_probabilities().exp() - student.log_probabilities().exp()).abs()
    floor = misclassified_gap(
        normalised_margin=Gamma, anchor_error=epsilon_b, least_threshold=float(b.min()), num_words=k
    )
    least_b = epsilon_b - math.log(4 * k)
    applies = 8 * epsilon_b < Gamma < 6 and float(b.min()) >= least_b
    divergence = float(word_divergences(teacher, student).mean())
    num_empty, obstacle_slack = _obstacles(sides, a, gamma, wrong)
    factor = RIGOROUS_CONSTANT / (mu * (p_b * Gamma) ** 2)
    return Transfer(
        status=Status(True, "The theorem applies." if applies else "The theorem does not apply."),
        num_products=0,
        seed=0,
        divergence=divergence,
        error_rate=float(wrong.double().sum() / task.double().sum()),
        bound=divergence * factor if applies else math.inf,
        applies=applies,
        normalised_margin=Gamma,
        bulk_probability=p_b,
        anchor_error=epsilon_b,
        share=mu,
        num_wrong=int(wrong.sum()),
        num_empty=num_empty,
        obstacle_slack=obstacle_slack,
        lemma_slack=_least(gaps[wrong].sum(1) - p_b * floor),
        bulk_slack=_bulk_slack(sides, p_b),
        word_slack=_word_slack(sides, gaps, a, b, p_b, epsilon_b),
    )


@dataclass(frozen=True, eq=False)
class _Side:
    """What the theorem needs to know of one model."""

    scores: Tensor
    offsets: Tensor  # ⟨v, v_j − v₀⟩ − b_j of the words of interest
    log_bulk_share: Tensor  # log Z_bulk/Z
    anchor_error: float


def _require_task(a: object, b: object, num_words: int, call: str) -> None:
    """Refuse what are no coefficients and thresholds of some of the words."""
    a, b = require_tensor(a, f"{call}(a)"), require_tensor(b, f"{call}(b)")
    if a.ndim != 1 or a.shape != b.shape or not 0 < len(a) <= num_words:
        raise ShapeError(
            f"`{call}(a, b)` must be vectors of one length, up to {num_words}; got "
            f"{tuple(a.shape)} and {tuple(b.shape)}."
        )


def _side(model: LogLinear, a: Tensor, b: Tensor) -> _Side:
    z, k = model.logits(), len(a)
    log_bulk = z[:, k:].logsumexp(1)
    fit = fit_anchors(require_matrix(model.states, "transfer(...)'s states"), log_bulk)
    anchor = fit.anchors[0].to(model.states)
    return _Side(
        scores=anchored_scores(model, anchor, a, b),
        offsets=model.states @ (model.embedding[:k] - anchor).T - b,
        log_bulk_share=log_bulk - z.logsumexp(1),
        anchor_error=fit.max_error,
    )


def _obstacles(sides: list[_Side], a: Tensor, gamma: float, wrong: Tensor) -> tuple[int, float]:
    """Look for the words that make contexts wrong, as the proof of Lemma 3.5.9 does.

    f* − f is a sum over words with a_j > 0, which the student sees less of, and one over words with
    a_j < 0, which it sees more of; where f* < 0 signs are flipped. The larger of the two is at
    least γ/2 in a context that is wrong. S(x) is of the words of that sum with Δ_j > 0.

    Returns:
        In how many contexts S(x) is empty, and the least of Σ Δ_j − γ/(2 max |a_j|) over S(x) in
        the others.
    """
    star, student = sides
    signed = star.scores[wrong].sign().unsqueeze(1) * a
    sums, empty, slack = [], [], []
    for high, low, weights in ((star, student, signed.relu()), (student, star, (-signed).relu())):
        up, down = high.offsets[wrong], low.offsets[wrong].relu()
        chosen = (weights > 0) & (up > down)
        sums.append((weights * (up.relu() - down)).sum(1))
        empty.append(~chosen.any(1))
        need = gamma / (2 * (weights * chosen).amax(1))
        slack.append(((up - down) * chosen).sum(1) - need)
    first = sums[0] >= sums[1]
    is_empty = torch.where(first, empty[0], empty[1])
    return int(is_empty.sum()), _least(torch.where(first, slack[0], slack[1])[~is_empty])


def _bulk_slack(sides: list[_Side], p_b: float) -> float:
    """Return the least of |Z*_bulk/Z* − Z_bulk/Z| − p_b(1 − e^{−ε_p})."""
    star, student = (side.log_bulk_share for side in sides)
    return _least((star.exp() - student.exp()).abs() + p_b * torch.expm1(-(star - student).abs()))


def _word_slack(
    sides: list[_Side], gaps: Tensor, a: Tensor, b: Tensor, p_b: float, epsilon_b: float
) -> float:
    """Return the least of |p*_j − p_j| − e^{b_j − ε_b − ε_p} p_b (e^{σ(Δ_j − 2ε_b − ε_p)} − 1)."""
    star, student = sides
    epsilon_p = (star.log_bulk_share - student.log_bulk_share).abs().unsqueeze(1)
    slacks = []
    # Words that the student sees less of than the teacher, and the other way round.
    for high, low in ((star, student), (student, star)):
        delta = high.offsets - low.offsets.relu()
        lift = torch.expm1((delta - 2 * epsilon_b - epsilon_p).relu())
        floor = (b - epsilon_b - epsilon_p).exp() * p_b * lift
        slacks.append((gaps[:, : len(a)] - floor)[delta > 0])
    return _least(torch.cat(slacks))


def _least(values: Tensor) -> float:
    return float(values.min()) if values.numel() else math.inf
