import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from eigenscape.errors import (
    FileError,
    InvalidArgumentError,
    ShapeError,
    UnknownNameError,
    UnsupportedModelError,
    WrongTypeError,
)
from eigenscape_papers.networks import GPT
from eigenscape_papers.representations import output_states, read_gpt2

TOKENS = torch.arange(12).reshape(3, 4) % 11
CONFIG = {"model_type": "gpt2", "n_head": 2, "activation_function": "gelu"}


@pytest.fixture
def net() -> GPT:
    return GPT(context=6, vocabulary=11, num_blocks=2, width=8, num_heads=2)


@pytest.fixture
def tensors(net: GPT) -> dict[str, torch.Tensor]:
    """The same network under GPT-2's names, its words read out by the matrix that embeds them."""
    net.head.weight = net.embed.weight
    state = {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}
    found = {"wte.weight": state["embed.weight"], "wpe.weight": state["position.weight"]}
    names = {
        "ln1": "ln_1",
        "qkv": "attn.c_attn",
        "proj": "attn.c_proj",
        "ln2": "ln_2",
        "fc1": "mlp.c_fc",
        "fc2": "mlp.c_proj",
    }
    for i in (1, 2):
        for ours, theirs in names.items():
            weight = state[f"b{i}-{ours}.weight"]
            found[f"h.{i - 1}.{theirs}.weight"] = (
                weight.T if weight.ndim == 2 else weight
            ).contiguous()
            found[f"h.{i - 1}.{theirs}.bias"] = state[f"b{i}-{ours}.bias"]
    return found | {"ln_f.weight": state["ln.weight"], "ln_f.bias": state["ln.bias"]}


@pytest.fixture
def folder(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_states_times_embedding_are_the_logits(net: GPT) -> None:
    net.train()
    found = output_states(net, TOKENS, head="head", batch_size=2)
    assert net.training
    with torch.no_grad():
        torch.testing.assert_close(found.logits(), net(TOKENS).flatten(0, 1))


def test_a_bias_becomes_a_dimension() -> None:
    model = nn.Sequential(nn.Embedding(7, 3), nn.Linear(3, 7))
    found = output_states(model, TOKENS % 7, head="1")
    assert found.states.shape == (12, 4)
    torch.testing.assert_close(found.logits(), model(TOKENS % 7).detach().flatten(0, 1))


class ByKeyword(nn.Module):
    """A head called by keyword, and a layer that its owner keeps in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.frozen, self.head = nn.Embedding(7, 3), nn.Dropout(0.5), nn.Linear(3, 7)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        assert not self.training
        return self.head(input=self.frozen(self.words(tokens)))


def test_a_head_called_by_keyword() -> None:
    model = ByKeyword()
    found = output_states(model, TOKENS % 7, head="head")
    expected = model.eval()(TOKENS % 7).detach().flatten(0, 1)
    torch.testing.assert_close(found.logits(), expected)


def test_every_part_gets_its_own_mode_back() -> None:
    model = ByKeyword().train()
    model.frozen.eval()
    output_states(model, TOKENS % 7, head="head")
    assert [part.training for part in model.modules()] == [True, True, False, True]
    model.eval().head.train()
    output_states(model, TOKENS % 7, head="head")
    assert [part.training for part in model.modules()] == [False, False, False, True]


@pytest.mark.parametrize("prefix", ["", "transformer."], ids=["plain", "prefixed"])
def test_gpt2_is_read_from_its_files(
    net: GPT, folder: Path, tensors: dict[str, torch.Tensor], prefix: str
) -> None:
    renamed = {f"{prefix}{name}": tensor for name, tensor in tensors.items()}
    save_file(renamed, folder / "model.safetensors")
    model = read_gpt2(folder)
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS), net(TOKENS))
    found = output_states(model, TOKENS, head="lm_head")
    torch.testing.assert_close(found.embedding, net.embed.weight.detach())
    with pytest.raises(ShapeError, match="up to 6 tokens; got 7"):
        model(torch.zeros(1, 7, dtype=torch.int64))


def test_gpt2s_own_gelu_is_the_default(net: GPT, folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"n_head": 2}))
    with torch.no_grad():
        difference = (read_gpt2(folder)(TOKENS) - net(TOKENS)).abs().max()
    assert 0 < difference < 1e-2


def change(folder: Path, **settings: object) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG | settings))


def test_an_output_layer_of_its_own_is_used(
    net: GPT, folder: Path, tensors: dict[str, torch.Tensor]
) -> None:
    head = torch.randn(11, 8)
    save_file(tensors | {"lm_head.weight": head}, folder / "model.safetensors")
    for settings in ({}, {"tie_word_embeddings": False}):
        change(folder, **settings)
        model = read_gpt2(folder)
        found = output_states(model, TOKENS, head="lm_head")
        assert torch.equal(found.embedding, head)
        net.head.weight = nn.Parameter(head)
        with torch.no_grad():
            torch.testing.assert_close(model(TOKENS), net(TOKENS))
    change(folder, tie_word_embeddings=True)
    with pytest.raises(FileError, match=r"'lm_head.weight' is another than 'wte.weight'"):
        read_gpt2(folder)
    save_file(
        tensors | {"lm_head.weight": tensors["wte.weight"].clone()}, folder / "model.safetensors"
    )
    assert torch.equal(read_gpt2(folder).lm_head.weight, tensors["wte.weight"])
    save_file(tensors | {"lm_head.weight": torch.randn(14, 8)}, folder / "model.safetensors")
    with pytest.raises(FileError, match=r"must be \(11, 8\).*got \(14, 8\).*do not match"):
        read_gpt2(folder)
    save_file(tensors, folder / "model.safetensors")
    change(folder, tie_word_embeddings=False)
    with pytest.raises(FileError, match=r"lacks the tensor 'lm_head.weight'"):
        read_gpt2(folder)


def test_the_configuration_is_that_of_the_tensors(
    folder: Path, tensors: dict[str, torch.Tensor]
) -> None:
    right = {"vocab_size": 11, "n_layer": 2, "n_embd": 8, "n_positions": 6, "n_inner": 32}
    change(folder, **right, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)
    read_gpt2(folder)
    change(folder, **right | {"n_inner": None})  # as published
    read_gpt2(folder)
    for name, number in right.items():
        change(folder, **right | {name: number + 1})
        text = f"config.json says {name} = {number + 1}, but the tensors have {number}"
        with pytest.raises(FileError, match=text):
            read_gpt2(folder)
    for flag, value in (
        ("scale_attn_by_inverse_layer_idx", True),
        ("scale_attn_weights", False),
        ("add_cross_attention", True),
    ):
        change(folder, **{flag: value})
        with pytest.raises(UnsupportedModelError, match=f"{flag} = {not value}.*has {value}"):
            read_gpt2(folder)
    change(folder, layer_norm_epsilon="small")
    with pytest.raises(WrongTypeError, match="layer_norm_epsilon"):
        read_gpt2(folder)
    change(folder)
    none = {name: tensor for name, tensor in tensors.items() if not name.startswith("h.")}
    save_file(none, folder / "model.safetensors")
    with pytest.raises(FileError, match="has no layers"):
        read_gpt2(folder)


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('a pickle was opened')",)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickles_are_refused_unopened(folder: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(FileError, match=f"pickle, {name}, and no model.safetensors"):
        read_gpt2(folder)
    (folder / "model.safetensors").write_bytes(pickle.dumps(Bomb()))  # under a false name
    with pytest.raises(FileError, match="no safetensors file, or damaged"):
        read_gpt2(folder)
    with pytest.raises(FileError, match=f"pickle, {name}"):
        read_gpt2(folder / name)


def test_damaged_folders_are_refused(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    (folder / "config.json").write_text("[1]")
    with pytest.raises(FileError, match="must hold an object"):
        read_gpt2(folder)
    (folder / "config.json").write_text(json.dumps(CONFIG | {"model_type": "opt"}))
    with pytest.raises(UnsupportedModelError, match="of the kind 'opt'"):
        read_gpt2(folder)
    (folder / "config.json").write_text(json.dumps(CONFIG | {"n_head": 3}))
    with pytest.raises(FileError, match="3 heads do not divide the width 8"):
        read_gpt2(folder)
    (folder / "config.json").write_text(json.dumps(CONFIG | {"activation_function": "relu"}))
    with pytest.raises(UnknownNameError, match="'gelu_new', 'gelu'; got 'relu'"):
        read_gpt2(folder)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    lacking = {name: t for name, t in tensors.items() if name != "h.1.mlp.c_fc.bias"}
    save_file(lacking, folder / "model.safetensors")
    with pytest.raises(FileError, match=r"lacks the tensor 'h.1.mlp.c_fc.bias'"):
        read_gpt2(folder)
    turned = tensors | {"h.0.mlp.c_fc.weight": tensors["h.0.mlp.c_fc.weight"].T.contiguous()}
    save_file(turned, folder / "model.safetensors")
    with pytest.raises(FileError, match=r"must be \(8, 32\).*got \(32, 8\)"):
        read_gpt2(folder)
    with pytest.raises(FileError, match="not there"):
        read_gpt2(folder / "nowhere")
    (folder / "config.json").unlink()
    with pytest.raises(FileError, match="a JSON file"):
        read_gpt2(folder)


def test_refusals(net: GPT) -> None:
    with pytest.raises(UnknownNameError, match="Nearest: 'head'"):
        output_states(net, TOKENS, head="lm_head")
    with pytest.raises(
        UnsupportedModelError, match="must name a linear layer; 'ln' is a LayerNorm"
    ):
        output_states(net, TOKENS, head="ln")
    with pytest.raises(InvalidArgumentError, match="vocabularies do not match"):
        output_states(net, TOKENS + 1, head="head")
    with pytest.raises(ShapeError, match=r"integers \(N, T\)"):
        output_states(net, TOKENS[0], head="head")
    with pytest.raises(ShapeError, match="float64"):
        output_states(net, TOKENS.double(), head="head")
    with pytest.raises(WrongTypeError, match="must be a tensor; got list"):
        output_states(net, TOKENS.tolist(), head="head")
    twice = nn.Linear(1, 2)
    model = nn.Sequential(nn.Embedding(2, 1), twice, nn.Linear(2, 1), twice)
    with pytest.raises(UnsupportedModelError, match="ran 2 times in 1 passes"):
        output_states(model, torch.zeros(1, 3, dtype=torch.int64), head="1")
    narrow = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 11))
    with pytest.raises(InvalidArgumentError, match=r"no row for a token.*'1' has 11 words"):
        output_states(narrow, TOKENS, head="1")
    narrow.train()
    with pytest.raises(InvalidArgumentError):
        output_states(narrow, TOKENS, head="1")
    assert narrow.training  # put back
    assert not narrow[1]._forward_pre_hooks
