"""The loss that a model returns: where it stands, how it is counted, how labels go back."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eigenscape.errors import ShapeError, UnknownNameError, UnsupportedModelError, WrongTypeError
from eigenscape.risk import (
    CallableLoss,
    CrossEntropy,
    ModelLoss,
    label_keyword,
    makes_decoder_inputs,
)
from eigenscape.risk.batch import parse
from eigenscape.risk.model_loss import is_causal, loss_in, number_of, read
from tests.oracles.labelled import EncoderDecoder, PairNet, TinyForCausalLM, TokenNet, text

ONE, Z = torch.tensor(2.5), torch.randn(3, 4)
LABELS = torch.tensor([[-100, 1, 2], [3, -100, -100]])


@pytest.mark.parametrize(
    "output",
    [
        ONE,
        {"loss": ONE, "logits": Z},
        SimpleNamespace(loss=ONE, logits=Z),
        SimpleNamespace(loss=ONE[None], logits=Z),
        (Z, ONE),
        (ONE, Z),
    ],
)
def test_losses_are_found(output: Any) -> None:
    assert loss_in(output) == 2.5


@pytest.mark.parametrize(
    "output",
    [
        Z,
        (Z, None),
        (ONE, ONE),
        {"logits": Z},
        SimpleNamespace(loss=None),
        SimpleNamespace(loss=Z),
        torch.tensor(3),
    ],
)
def test_what_may_be_no_loss_is_none(output: Any) -> None:
    assert loss_in(output) is None


@pytest.mark.parametrize(("count", "number"), [("labels", 3), ("next labels", 2), ("samples", 2)])
def test_terms_are_counted_by_labels(count: str, number: int) -> None:
    assert number_of(LABELS, count) == number
    total, terms = ModelLoss(count).total(ONE, LABELS)
    assert (total.item(), terms.item()) == (2.5 * number, number)


def test_real_labels_count_all() -> None:
    assert number_of(Z, "labels") == 12


def test_a_mean_of_nothing_adds_nothing() -> None:
    total, terms = ModelLoss().total(torch.tensor(torch.nan), torch.full((2, 3), -100))
    assert (total.item(), terms.item()) == (0.0, 0.0)


def test_what_cannot_be_counted_is_refused() -> None:
    with pytest.raises(ShapeError, match="no tensor"):
        ModelLoss().total(ONE, None)
    with pytest.raises(WrongTypeError, match="works within"):
        ModelLoss().total(Z, LABELS)
    with pytest.raises(UnknownNameError, match="next labels"):
        ModelLoss("tokens")


def test_each_loss_reads_its_own() -> None:
    output = SimpleNamespace(loss=ONE, logits=Z)
    assert read(ModelLoss(), output) == 2.5
    assert read(CrossEntropy(), output) is Z
    assert read(CallableLoss(print, takes_whole=True), output) is output
    assert read(CallableLoss(print, takes_whole=False), output) is Z
    with pytest.raises(UnsupportedModelError, match="returned a Tensor without"):
        read(ModelLoss(), Z)


def test_curvature_at_the_output_is_refused() -> None:
    for call in (ModelLoss().hessian_at, ModelLoss().output_gradient, ModelLoss().term_dims):
        with pytest.raises(UnsupportedModelError, match="Use `Hessian"):
            call(ONE, LABELS)


class Wrapper(nn.Module):
    """Hands all to a module, as `DataParallel` does."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


def test_causal_models_are_known_by_name_also_inside_wrappers() -> None:
    assert is_causal(TinyForCausalLM())
    assert is_causal(Wrapper(Wrapper(TinyForCausalLM())))
    assert not is_causal(TokenNet())
    assert not is_causal(None)


def test_an_encoder_decoder_is_not_causal_whatever_its_name() -> None:
    class OddForCausalLM(EncoderDecoder):
        pass

    assert not is_causal(OddForCausalLM())


def test_labels_go_back_by_the_key_that_they_came_with() -> None:
    assert label_keyword(TokenNet(), parse(text())) == "labels"
    assert label_keyword(Wrapper(TokenNet()), parse(text())) == "labels"
    assert label_keyword(PairNet(), parse((Z, Z))) == "targets"
    assert label_keyword(PairNet(), parse(text())) is None
    assert label_keyword(nn.Linear(4, 2), parse((Z, Z))) is None
    assert label_keyword(TokenNet(), parse((Z,))) is None


def test_decoders_need_labels_unless_their_inputs_are_given() -> None:
    batch = parse(text())
    assert makes_decoder_inputs(Wrapper(EncoderDecoder()), batch)
    assert not makes_decoder_inputs(EncoderDecoder(), parse(text() | {"decoder_input_ids": Z}))
    assert not makes_decoder_inputs(TokenNet(), batch)


def test_labels_given_back_are_cut_with_their_samples() -> None:
    labelled = parse(text()).labelled("labels").take([4, 1])
    found: Tensor = labelled.kwargs["labels"]
    torch.testing.assert_close(found, text()["labels"][[4, 1]])
    torch.testing.assert_close(found, labelled.target)
