"""Losses of the models of transformers, against plain double backward of what they return."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import eigenscape as es
from eigenscape.errors import GroupingWarning, InvalidArgumentError, SubstitutionWarning

transformers = pytest.importorskip("transformers")

V, N, T = 37, 6, 8
WIDTHS = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
TEXT = {"vocab_size": V, "hidden_size": 8, "max_position_embeddings": 16, **WIDTHS}
TOKENS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
BOTH = {
    "vocab_size": V,
    "d_model": 8,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 12,
    "decoder_ffn_dim": 12,
    "decoder_start_token_id": 2,
    **TOKENS,
}
# In float32: models take logits to it for their own loss, and kernels for experts know no other.
RTOL = 1e-5

Data = dict[str, Tensor]


def tokens(length: int = T) -> Tensor:
    return torch.randint(3, V, (N, length))


def text() -> Data:
    """Padded sentences, with labels as they stand."""
    ids = tokens()
    mask, labels = torch.ones_like(ids), ids.clone()
    ids[:3, 5:], mask[:3, 5:], labels[:3, 5:] = 1, 0, -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def masked() -> Data:
    data = text()
    data["labels"][torch.rand(N, T) > 0.4] = -100
    data["labels"][3] = -100  # a sentence without a target
    return data


def pairs(length: int = T) -> Data:
    return text() | {"labels": tokens(length)}


def images() -> Data:
    return {"pixel_values": torch.randn(N, 3, 8, 8).float(), "labels": torch.randint(0, 3, (N,))}


def sounds() -> Data:
    return {"input_features": torch.randn(N, 8, 20).float(), "labels": tokens(5)}


def built(name: str, **settings: Any) -> nn.Module:
    """Build a model by the names of its class and of its configuration."""
    config = getattr(transformers, f"{name.partition('For')[0].removesuffix('LMHeadModel')}Config")
    model: nn.Module = getattr(transformers, name)(config(**settings))
    return model.float()


def gpt2() -> nn.Module:
    sizes = {"vocab_size": V, "n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2}
    return built("GPT2LMHeadModel", **sizes, bos_token_id=0, eos_token_id=2)


def mixtral(*, router: bool) -> nn.Module:
    return built(
        "MixtralForCausalLM",
        **TEXT,
        **TOKENS,
        num_key_value_heads=1,
        num_local_experts=4,
        output_router_logits=router,
        router_aux_loss_coef=0.5,
    )


def t5() -> nn.Module:
    sizes = {"vocab_size": V, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 1, "num_heads": 2}
    return built("T5ForConditionalGeneration", **sizes, decoder_start_token_id=0)


def whisper() -> nn.Module:
    sizes = {"num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 16}
    none: dict[str, Any] = {"suppress_tokens": [], "begin_suppress_tokens": []}
    return built("WhisperForConditionalGeneration", **BOTH, **sizes, **none)


def lora() -> nn.Module:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: nn.Module = peft.get_peft_model(gpt2(), config)
    return model.float()


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Data], bool]] = {
    "gpt2": (gpt2, text, True),
    "llama": (lambda: built("LlamaForCausalLM", **TEXT, **TOKENS), text, True),
    "experts": (lambda: mixtral(router=False), text, True),
    "lora": (lora, text, True),
    "masked": (lambda: built("BertForMaskedLM", **TEXT), masked, False),
    "classes": (
        lambda: built("BertForSequenceClassification", **TEXT, num_labels=3),
        lambda: text() | {"labels": torch.randint(0, 3, (N,))},
        False,
    ),
    "t5": (t5, lambda: pairs(5), False),
    "bart": (
        lambda: built("BartForConditionalGeneration", **BOTH, max_position_embeddings=16),
        pairs,  # labels as long as the inputs: without labels, it feeds the inputs to its decoder
        False,
    ),
    "whisper": (whisper, sounds, False),
    "vit": (
        lambda: built(
            "ViTForImageClassification",
            hidden_size=8,
            image_size=8,
            patch_size=4,
            num_labels=3,
            **WIDTHS,
        ),
        images,
        False,
    ),
}


def quiet(model: nn.Module, loss: Any, data: Any) -> es.EmpiricalRisk:
    """Make a risk; other libraries warn of their own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return es.EmpiricalRisk(model, loss, data)


def own_mean(model: nn.Module, data: Data) -> Tensor:
    """Return what the model says of all data at once."""
    model.eval()
    with warnings.catch_warnings(), sdpa_kernel([SDPBackend.MATH]):
        warnings.simplefilter("ignore")
        found: Tensor = model(**data).loss
    return found


def assert_product(risk: es.EmpiricalRisk, own: Tensor) -> None:
    """Compare a product with plain double backward."""
    params = [p for p in risk.module.parameters() if p.requires_grad]
    v = torch.randn(risk.space.size, dtype=risk.dtype)

    def flat(value: Tensor) -> Tensor:
        found = torch.autograd.grad(value, params, create_graph=True, materialize_grads=True)
        return torch.cat([part.flatten() for part in found])

    expected = flat(flat(own) @ v)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = es.Hessian(risk, representation="graph") @ v
    assert (found - expected).norm() <= RTOL * expected.norm()


@pytest.mark.parametrize("name", MODELS)
def test_cross_entropy_is_the_loss_that_the_model_returns(name: str) -> None:
    make, draw, shift = MODELS[name]
    model, data = make(), draw()
    risk = quiet(model, es.CrossEntropy(), data)
    own = own_mean(model, data)
    assert risk.value() == pytest.approx(own.item(), rel=RTOL)
    assert bool(risk.loss.next_token) == shift
    assert "own loss" in risk.loss_choice.note
    assert_product(risk, own)


@pytest.mark.parametrize("name", MODELS)
def test_the_models_own_loss_is_taken_for_cross_entropy(name: str) -> None:
    make, draw, _ = MODELS[name]
    model, data = make(), draw()
    risk = quiet(model, es.ModelLoss(), data)
    assert isinstance(risk.loss, es.CrossEntropy)
    assert risk.value() == pytest.approx(own_mean(model, data).item(), rel=RTOL)


@pytest.mark.parametrize("name", ["gpt2", "llama", "masked", "t5"])
def test_other_precision_and_scale_are_no_difference(name: str) -> None:
    make, draw, _ = MODELS[name]
    for seed in range(3):
        torch.manual_seed(seed)
        model = make()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(10.0**seed)
        for dtype in (torch.float32, torch.float64):
            risk = quiet(model.to(dtype), es.CrossEntropy(), draw())
            assert "own loss" in risk.loss_choice.note


def test_ragged_batches_are_weighted_by_their_terms() -> None:
    model, data = gpt2(), text()
    batches = [{key: t[a:b] for key, t in data.items()} for a, b in ((0, 4), (4, 5), (5, 6))]
    batches[0] = {key: t[:, :6] for key, t in batches[0].items()}  # of another length
    risk = quiet(model, es.CrossEntropy(), batches)
    counts = [int((b["labels"][:, 1:] != -100).sum()) for b in batches]
    terms = [n * own_mean(model, b) for n, b in zip(counts, batches, strict=True)]
    own = torch.stack(terms).sum() / sum(counts)
    assert risk.value() == pytest.approx(own.item(), rel=RTOL)
    assert_product(risk, own)


def test_a_routers_term_is_refused_as_cross_entropy_and_taken_as_the_models_loss() -> None:
    model, data = mixtral(router=True), text()
    with pytest.raises(InvalidArgumentError, match="a router's"):
        quiet(model, es.CrossEntropy(), data)
    quiet(model, es.CrossEntropy(next_token=True), data)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        risk = es.EmpiricalRisk(model, es.ModelLoss(), data)
    assert any("one batch" in str(w.message) for w in said if w.category is SubstitutionWarning)
    own = own_mean(model, data)
    assert risk.value() == pytest.approx(own.item(), rel=RTOL)
    assert_product(risk, own)


def test_a_routers_term_in_batches_of_the_users_own_is_said() -> None:
    model, data = mixtral(router=True), text()
    halves = [{key: t[a : a + 3] for key, t in data.items()} for a in (0, 3)]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        es.EmpiricalRisk(model, es.ModelLoss(), halves)
    assert any(w.category is GroupingWarning for w in said)


def test_the_model_is_given_back_as_it_came() -> None:
    model, data = t5(), pairs(5)
    before = copy.deepcopy(model.state_dict())
    quiet(model, es.ModelLoss(), data)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
