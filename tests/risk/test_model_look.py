"""A mean with its rounding error, and the shapes that it needs."""

import pytest
import torch
import torch.nn.functional as F

from eigenscape.risk import CrossEntropy, SquaredError, model_look
from eigenscape.risk.model_look import mean_of, meets_positions

Z = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 3, (4, 5), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_mean_of_logits_is_exact_within_its_stated_rounding(dtype: torch.dtype) -> None:
    z = (20 * Z).to(dtype)
    value, rounding = mean_of(CrossEntropy(next_token=True), {"logits": z}, Y)
    own = F.cross_entropy(z[:, :-1].flatten(0, 1), Y[:, 1:].flatten())  # in the model's precision
    assert abs(value - own.item()) < rounding
    assert rounding < 0.1 * value if dtype != torch.bfloat16 else rounding > 1e-2


def test_large_logits_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = mean_of(CrossEntropy(), Z, Y)
    monkeypatch.setattr(model_look, "_MOST_NUMBERS", 20)  # a sample has 15
    assert mean_of(CrossEntropy(), Z, Y) == pytest.approx(whole, rel=1e-12)


def test_what_does_not_fit_has_no_mean() -> None:
    assert mean_of(CrossEntropy(), Z, Y[:, :2]) is None
    assert mean_of(SquaredError(), Z, Y) is None
    assert mean_of(CrossEntropy(), torch.tensor(1.0), Y) is None
    assert mean_of(CrossEntropy(), Z, torch.full_like(Y, -100)) is None
    assert mean_of(CrossEntropy(next_token=True), Z[:, 0], Y[:, 0]) is None


def test_positions_are_told_by_shape() -> None:
    assert meets_positions({"logits": Z}, Y)
    assert not meets_positions(Z[:, 0], Y[:, 0])
    assert not meets_positions(Z[:, :1], Y[:, :1])
    assert not meets_positions(Z, Y.double())
