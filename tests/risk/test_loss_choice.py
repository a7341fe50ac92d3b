"""What a loss leaves open is settled by the model: its kind, and the loss that it returns."""

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eigenscape.curvature import GaussNewton, Hessian, LayerHessian
from eigenscape.errors import (
    EigenscapeWarning,
    GroupingWarning,
    InvalidArgumentError,
    SubstitutionWarning,
    UnsupportedModelError,
    WrongTypeError,
)
from eigenscape.risk import BinaryCrossEntropy, CrossEntropy, EmpiricalRisk, ModelLoss, SquaredError
from tests.oracles.labelled import (
    EncoderDecoder,
    LossOnly,
    N,
    PairNet,
    SilentForCausalLM,
    TinyForCausalLM,
    TokenNet,
    parts,
    shifted,
    text,
    unshifted,
)


def assert_hessian_of(risk: EmpiricalRisk, own: Tensor, **options: Any) -> None:
    """Compare a product with one by plain double backward."""
    params = list(risk.module.parameters())

    def flat(value: Tensor) -> Tensor:
        found = torch.autograd.grad(value, params, create_graph=True, materialize_grads=True)
        return torch.cat([part.flatten() for part in found])

    v = torch.randn(risk.space.size)
    torch.testing.assert_close(Hessian(risk, **options) @ v, flat(flat(own) @ v))


# --- cross-entropy -------------------------------------------------------------------------------


def test_causal_models_are_compared_with_the_next_token() -> None:
    model, data = TinyForCausalLM(), text()
    risk = EmpiricalRisk(model, CrossEntropy(), data)
    own = model(**data).loss
    assert risk.value() == pytest.approx(own.item(), rel=1e-12)
    assert_hessian_of(risk, own)
    assert "next token, as TinyForCausalLM's own loss" in risk.loss_choice.note
    assert f"{own.item():.7g}" in risk.loss_choice.note


def test_models_that_do_not_shift_are_not_shifted() -> None:
    model, data = TokenNet(), text()
    risk = EmpiricalRisk(model, CrossEntropy(), data)
    assert not risk.loss.next_token
    assert risk.value() == pytest.approx(model(**data).loss.item(), rel=1e-12)


def test_a_model_known_as_causal_that_does_not_shift_is_believed_its_own_loss() -> None:
    class OddForCausalLM(TokenNet):
        pass

    risk = EmpiricalRisk(model := OddForCausalLM(), CrossEntropy(), data := text())
    assert risk.value() == pytest.approx(model(**data).loss.item(), rel=1e-12)


def test_without_a_loss_of_its_own_a_causal_model_is_shifted_and_that_is_said() -> None:
    model, data = SilentForCausalLM(), text()
    pair = (data["input_ids"], data["labels"])
    with pytest.warns(SubstitutionWarning, match="label of the next one"):
        risk = EmpiricalRisk(model, CrossEntropy(), pair)
    expected = shifted(model(pair[0]), pair[1]).item()
    assert risk.value() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("shift", [False, True])
def test_what_is_said_is_not_guessed(shift: bool) -> None:
    model, data = TinyForCausalLM(), text()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        risk = EmpiricalRisk(model, CrossEntropy(next_token=shift), data)
    mean = shifted if shift else unshifted
    expected = mean(model(data["input_ids"]).logits, data["labels"]).item()
    assert risk.value() == pytest.approx(expected, rel=1e-12)
    assert bool(risk.loss_choice.difference) == (not shift)


def test_targets_that_are_shifted_already_are_not_shifted_again() -> None:
    model, ids = TinyForCausalLM(), text(padded=False)["input_ids"]
    risk = EmpiricalRisk(model, CrossEntropy(), (ids[:, :-1], ids[:, 1:]))
    expected = unshifted(model(ids[:, :-1]).logits, ids[:, 1:]).item()
    assert risk.value() == pytest.approx(expected, rel=1e-12)
    assert "moved by one already" in risk.loss_choice.note


def test_labels_that_the_model_would_shift_twice_are_refused() -> None:
    ids = text(padded=False)["input_ids"]
    data = {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}
    with pytest.raises(InvalidArgumentError, match="would move them once more"):
        EmpiricalRisk(TinyForCausalLM(), CrossEntropy(), data)
    EmpiricalRisk(TinyForCausalLM(), CrossEntropy(next_token=False), data)


@pytest.mark.parametrize("kind", [TinyForCausalLM, TokenNet])
def test_a_guess_that_differs_from_the_models_own_loss_is_refused(kind: type[TokenNet]) -> None:
    model, data = kind(extra=0.01), text()
    with pytest.raises(InvalidArgumentError, match="router's or an auxiliary") as caught:
        EmpiricalRisk(model, CrossEntropy(), data)
    assert f"{model(**data).loss.item():.7g}" in str(caught.value)


def test_a_classifier_that_differs_is_warned_of_unless_it_is_meant() -> None:
    class Smoothed(nn.Linear):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
            z = super().forward(x)
            own = None if labels is None else F.cross_entropy(z, labels, label_smoothing=0.1)
            return {"logits": z, "loss": own}

    model, data = Smoothed(3, 2), {"x": torch.randn(8, 3), "labels": torch.randint(0, 2, (8,))}
    with pytest.warns(EigenscapeWarning, match="smoothed or weighted labels"):
        EmpiricalRisk(model, CrossEntropy(), data)
    EmpiricalRisk(model, CrossEntropy(next_token=False), data)
    assert isinstance(EmpiricalRisk(model, ModelLoss(), data).loss, ModelLoss)


def test_a_difference_in_the_last_batch_alone_is_found() -> None:
    class Smoothed(TinyForCausalLM):
        @staticmethod
        def loss(z: Tensor, y: Tensor) -> Tensor:
            smoothing = 0.1 * (len(y) == 1)
            return F.cross_entropy(
                z[:, :-1].flatten(0, 1), y[:, 1:].flatten(), label_smoothing=smoothing
            )

    data = text()
    EmpiricalRisk(Smoothed(), CrossEntropy(), parts(data, 3, 3))
    with pytest.raises(InvalidArgumentError, match="smoothed"):
        EmpiricalRisk(Smoothed(), CrossEntropy(), parts(data, 3, 2, 1))


def test_batches_without_any_label_are_no_difference() -> None:
    data = text()
    data["labels"][:2] = -100
    risk = EmpiricalRisk(TinyForCausalLM(), CrossEntropy(), parts(data, 2, 4))
    assert "as TinyForCausalLM's own" in risk.loss_choice.note


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_rounding_is_no_difference(dtype: torch.dtype, scale: float) -> None:
    class Rounded(TinyForCausalLM):
        @staticmethod
        def loss(z: Tensor, y: Tensor) -> Tensor:
            return shifted(z.float(), y)  # as transformers do

    for seed in range(2):
        torch.manual_seed(seed)
        model = Rounded().to(dtype)
        with torch.no_grad():
            model.head.weight *= scale
        risk = EmpiricalRisk(model, CrossEntropy(), text(count=24))
        assert risk.loss.next_token


def test_settings_are_the_users_choice() -> None:
    model, data = TinyForCausalLM(), text()
    risk = EmpiricalRisk(model, CrossEntropy(label_smoothing=0.1), data)
    assert risk.loss.next_token
    assert risk.loss.label_smoothing == 0.1


def test_a_plain_model_is_not_evaluated_for_it() -> None:
    calls = [0]

    def count(*_: object) -> None:
        calls[0] += 1

    def calls_of(loss: object, y: Tensor) -> int:
        model = nn.Linear(3, 2)
        model.register_forward_hook(count)
        calls[0] = 0
        EmpiricalRisk(model, loss, (torch.randn(4, 3), y))
        return calls[0]

    classes, reals = torch.randint(0, 2, (4,)), torch.randn(4, 2)
    assert calls_of(CrossEntropy(), classes) == calls_of(CrossEntropy(next_token=False), classes)
    assert calls_of(SquaredError(), reals) == calls_of(CrossEntropy(), classes)


# --- labels that are given back ------------------------------------------------------------------


@pytest.mark.parametrize("loss", [CrossEntropy(), ModelLoss()])
@pytest.mark.parametrize("batched", [False, True])
def test_decoders_are_fed_the_labels(loss: Any, batched: bool) -> None:
    model, data = EncoderDecoder(), text(padded=False)
    data["labels"] = data["labels"].flip(1)
    risk = EmpiricalRisk(model, loss, parts(data, 4, 2) if batched else data)
    own = model(**data).loss
    assert risk.value() == pytest.approx(own.item(), rel=1e-12)
    assert_hessian_of(risk, own)
    GaussNewton(risk) @ torch.ones(risk.space.size)  # is not refused


def test_decoder_inputs_that_are_given_are_used() -> None:
    data = text(padded=False) | {"decoder_input_ids": torch.ones(N, 5, dtype=torch.long)}
    risk = EmpiricalRisk(model := EncoderDecoder(), CrossEntropy(), data)
    assert risk.value() == pytest.approx(model(**data).loss.item(), rel=1e-12)
    assert risk.loss_choice.keyword is None


def test_labels_are_given_where_all_logits_are_returned_only_then() -> None:
    model, ids = PairNet(), text(padded=False)["input_ids"]
    data = (ids[:, :-1], ids[:, 1:])
    risk = EmpiricalRisk(model, CrossEntropy(), data)
    expected = model(*data)[1]
    assert risk.value() == pytest.approx(expected.item(), rel=1e-12)
    assert_hessian_of(risk, expected)


def test_other_data_are_given_out_alike() -> None:
    model, data = EncoderDecoder(), text(padded=False)
    other = {name: tensor.flip(0)[:4] for name, tensor in data.items()}
    risk = EmpiricalRisk(model, CrossEntropy(), data).on(other)
    assert risk.value() == pytest.approx(model(**other).loss.item(), rel=1e-12)


# --- the model's own -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [TinyForCausalLM, TokenNet])
def test_an_own_loss_that_is_cross_entropy_is_taken_for_it(kind: type[TokenNet]) -> None:
    model, data = kind(), text()
    risk = EmpiricalRisk(model, ModelLoss(), data, batch_size=2)
    own = model(**data).loss
    assert isinstance(risk.loss, CrossEntropy)
    assert risk.value() == pytest.approx(own.item(), rel=1e-12)
    assert_hessian_of(risk, own)
    GaussNewton(risk) @ torch.ones(risk.space.size)  # is not refused


def test_a_term_of_a_batch_keeps_all_data_together() -> None:
    model, data = TinyForCausalLM(extra=3.0), text()
    with pytest.warns(SubstitutionWarning, match="all data are evaluated as one batch"):
        risk = EmpiricalRisk(model, ModelLoss(), data)
    own = model(**data).loss
    assert isinstance(risk.loss, ModelLoss)
    assert risk.value() == pytest.approx(own.item(), rel=1e-12)
    for representation in ("auto", "graph"):
        assert_hessian_of(risk, own, representation=representation)


def test_a_term_of_a_batch_depends_on_the_users_batches_and_that_is_said() -> None:
    model, batches = TinyForCausalLM(extra=3.0), parts(text(), 4, 2)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        risk = EmpiricalRisk(model, ModelLoss(), batches)
    assert any("router's" in str(w.message) for w in said if w.category is GroupingWarning)
    counts = [int((b["labels"][:, 1:] != -100).sum()) for b in batches]
    sums = [n * model(**b).loss.item() for n, b in zip(counts, batches, strict=True)]
    assert risk.value() == pytest.approx(sum(sums) / sum(counts), rel=1e-12)


def test_a_value_that_agrees_does_not_hide_another_gradient() -> None:
    class Hidden(TinyForCausalLM):
        @staticmethod
        def loss(z: Tensor, y: Tensor) -> Tensor:
            return shifted(z, y) + (z - z.detach()).sum()

    risk = EmpiricalRisk(Hidden(), ModelLoss(), text())
    assert isinstance(risk.loss, ModelLoss)


@pytest.mark.parametrize("batched", [False, True])
def test_a_mean_over_samples_is_counted_as_one(batched: bool) -> None:
    model, ids = LossOnly(), text(padded=False)["input_ids"]
    data = {"input_ids": ids, "labels": ids[:, 0]}
    risk = EmpiricalRisk(model, ModelLoss(), parts(data, 4, 2) if batched else data)
    own = model(**data)
    assert risk.value() == pytest.approx(own.item(), rel=1e-12)
    assert_hessian_of(risk, own)
    v = torch.zeros(risk.space.size)
    v[-35:] = torch.randn(35)
    expected = (Hessian(risk) @ v)[-35:]
    torch.testing.assert_close(LayerHessian(risk, "head") @ v[-35:], expected)


def test_gauss_newton_of_an_unknown_loss_is_refused_with_what_to_do() -> None:
    ids = text(padded=False)["input_ids"]
    risk = EmpiricalRisk(LossOnly(), ModelLoss(), {"input_ids": ids, "labels": ids[:, 0]})
    with pytest.raises(UnsupportedModelError, match="Use `Hessian"):
        GaussNewton(risk) @ torch.ones(risk.space.size)


def test_a_model_that_returns_no_loss_is_refused() -> None:
    data = (torch.randn(4, 3), torch.randint(0, 2, (4,)))
    with pytest.raises(UnsupportedModelError, match="needs a model that returns its loss"):
        EmpiricalRisk(nn.Linear(3, 2), ModelLoss(), data)


def test_a_model_that_fails_with_labels_is_refused_in_its_words() -> None:
    class Broken(TokenNet):
        def forward(self, input_ids: Tensor, labels: Any = None) -> Any:
            raise ValueError("no such language")

    with pytest.raises(UnsupportedModelError, match="no such language"):
        EmpiricalRisk(Broken(), ModelLoss(), text())


def test_a_model_that_runs_only_with_labels_is_told_of_its_own_loss() -> None:
    ids = text(padded=False)["input_ids"]
    with pytest.raises(UnsupportedModelError, match=r"`ModelLoss\(\)`"):
        EmpiricalRisk(LossOnly(), CrossEntropy(), {"input_ids": ids, "labels": ids[:, 0]})


# --- other losses --------------------------------------------------------------------------------


def test_other_losses_say_how_the_models_own_differs() -> None:
    class Regression(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(3, 2)

        def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
            z = self.net(x)
            return SimpleNamespace(logits=z, loss=None if labels is None else F.mse_loss(z, labels))

    data = {"x": torch.randn(4, 3), "labels": torch.randn(4, 2)}
    same = EmpiricalRisk(Regression(), SquaredError(1.0, "elements"), data)
    other = EmpiricalRisk(Regression(), BinaryCrossEntropy(), data)
    assert "as Regression's own loss" in same.loss_choice.note
    assert "is not the loss that Regression returns" in other.loss_choice.difference


def test_functions_get_all_that_the_model_returns_or_the_logits() -> None:
    model, data = TokenNet(), text(padded=False)
    wanted = unshifted(model(data["input_ids"]).logits, data["labels"]).item()
    for function in (
        lambda output, y: unshifted(output.logits, y),
        lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten()),
    ):
        risk = EmpiricalRisk(model, function, data)
        assert risk.value() == pytest.approx(wanted, rel=1e-12)


def test_a_function_that_takes_neither_is_refused() -> None:
    with pytest.raises(WrongTypeError, match="takes neither"):
        EmpiricalRisk(TokenNet(), lambda output, y: output["hidden"], text())


def test_functions_of_decoders_get_outputs_made_of_labels() -> None:
    model, data = EncoderDecoder(), text(padded=False)
    risk = EmpiricalRisk(model, lambda out, y: unshifted(out.logits, y), data)
    assert risk.value() == pytest.approx(model(**data).loss.item(), rel=1e-12)
