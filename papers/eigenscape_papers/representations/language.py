"""States and output embedding of a language model: of any PyTorch model, or of GPT-2's own files.

`output_states` looks at what goes into a model's last linear layer. `read_gpt2` builds GPT-2 from
the folder in which it is published, `config.json` and `model.safetensors`, and needs no other
library; files that would have to run code to be read are refused.
"""

import json
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from eigenscape.errors import (
    FileError,
    InvalidArgumentError,
    ShapeError,
    UnknownNameError,
    UnsupportedModelError,
    WrongTypeError,
    near_matches,
    require_choice,
    require_count,
    require_positive,
)
from eigenscape.risk import eval_mode
from eigenscape_papers.representations.log_linear import LogLinear

_PICKLES = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt")
_ACTIVATIONS = {"gelu_new": "tanh", "gelu": "none"}
_LAYER = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
# Settings that change what is computed, with the only value that is computed here.
_FLAGS = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}


def output_states(
    model: nn.Module, tokens: Tensor, *, head: str, batch_size: int = 16
) -> LogLinear:
    """Run a language model and keep what its output layer is given.

    The model runs in eval mode, without gradients; every part's mode is put back afterwards. A bias
    of the output layer becomes one dimension more, whose state is 1.

    Args:
        model: Any model with a linear output layer, called with tokens.
        tokens: Token numbers (N, T), on the model's device.
        head: The output layer's name, such as "head" or "lm_head".
        batch_size: Sequences of a pass.

    Returns:
        States of all positions (N·T, d) and the output embedding (words, d).

    Raises:
        UnknownNameError: If the model has no layer of that name.
        UnsupportedModelError: If that layer is not linear, or did not run exactly once a pass.
        ShapeError: If tokens are not (N, T) integers.
        InvalidArgumentError: If a token is outside the vocabulary, or the model has no row for one
            or for a position.

    Examples:
        >>> from eigenscape_papers.networks import build
        >>> net = build("GPT-1x8x2", input_shape=(5,), num_classes=11)
        >>> found = output_states(net, torch.zeros(3, 4, dtype=torch.int64), head="head")
        >>> found.states.shape, found.embedding.shape
        (torch.Size([12, 8]), torch.Size([11, 8]))
    """
    layers = dict(model.named_modules())
    if head not in layers:
        raise UnknownNameError(
            f"`output_states(head=...)`: the model has no layer {head!r}. "
            f"{near_matches(head, [name for name in layers if name])}"
        )
    layer = layers[head]
    if not isinstance(layer, nn.Linear):
        raise UnsupportedModelError(
            f"`output_states(head=...)` must name a linear layer; {head!r} is a "
            f"{type(layer).__name__}."
        )
    require_count(batch_size, "output_states(batch_size=...)")
    _require_tokens(tokens, layer.out_features)
    inputs: list[tuple[Any, ...]] = []
    hook = layer.register_forward_pre_hook(
        lambda _, args, named: inputs.append((*args, *named.values())), with_kwargs=True
    )
    try:
        with eval_mode(model), torch.no_grad():
            batches = tokens.split(batch_size)
            for batch in batches:
                model(batch)
    except IndexError as error:
        raise InvalidArgumentError(
            f"`output_states(tokens)`: the model has no row for a token or a position ({error}). "
            f"{head!r} has {layer.out_features} words; the model's input embedding may have fewer, "
            f"or its context be shorter than {tokens.shape[1]}. Use its own tokenizer, and cut the "
            "sequences."
        ) from error
    finally:
        hook.remove()
    if len(inputs) != len(batches):
        raise UnsupportedModelError(
            f"`output_states(head=...)`: {head!r} ran {len(inputs)} times in {len(batches)} "
            "passes; it must run once in each."
        )
    states = torch.cat([args[0].detach().flatten(0, -2) for args in inputs])
    embedding = layer.weight.detach()
    if layer.bias is not None:
        states = torch.cat([states, torch.ones_like(states[:, :1])], dim=1)
        embedding = torch.cat([embedding, layer.bias.detach().unsqueeze(1)], dim=1)
    return LogLinear(states, embedding)


class GPT2(nn.Module):
    """GPT-2 as published: pre-LayerNorm blocks, words embedded and read out by one matrix.

    Made by `read_gpt2`. Its output layer is called "lm_head"; files that have one of their own
    ("lm_head.weight") are read out by that.
    """

    def __init__(
        self, tensors: dict[str, Tensor], *, heads: int, epsilon: float, gelu: str
    ) -> None:
        """Take the tensors, by the names they have in the file.

        Args:
            tensors: Weights.
            heads: Attention heads.
            epsilon: Of the LayerNorms.
            gelu: How the GELU is computed, "tanh" or "none".
        """
        super().__init__()
        self._heads, self._epsilon, self._gelu = heads, epsilon, gelu
        self._tensors = tensors
        words = tensors.get("lm_head.weight", tensors["wte.weight"])
        self.lm_head = nn.Linear(words.shape[1], len(words), bias=False, dtype=words.dtype)
        self.lm_head.weight = nn.Parameter(words, requires_grad=False)

    @property
    def context(self) -> int:
        """Most positions of a sequence."""
        return len(self._tensors["wpe.weight"])

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token numbers (N, T) to the logits of each next token (N, T, words).

        Args:
            tokens: Integers below the vocabulary's size.

        Returns:
            The logits.

        Raises:
            ShapeError: If the sequences are longer than the context.
        """
        length = tokens.shape[1]
        if length > self.context:
            raise ShapeError(
                f"This GPT-2 takes up to {self.context} tokens; got {length}. Cut the sequences."
            )
        x = F.embedding(tokens, self._tensors["wte.weight"]) + self._tensors["wpe.weight"][:length]
        for i in range(_num_layers(self._tensors)):
            x = x + self._attend(f"h.{i}.", self._normalised(f"h.{i}.ln_1", x))
            units = self._affine(f"h.{i}.mlp.c_fc", self._normalised(f"h.{i}.ln_2", x))
            x = x + self._affine(f"h.{i}.mlp.c_proj", F.gelu(units, approximate=self._gelu))
        logits: Tensor = self.lm_head(self._normalised("ln_f", x))
        return logits

    def _attend(self, layer: str, x: Tensor) -> Tensor:
        T = x.shape[1]
        qkv = self._affine(f"{layer}attn.c_attn", x).unflatten(-1, (3, self._heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        heads = scores.masked_fill(future, -math.inf).softmax(-1) @ v
        return self._affine(f"{layer}attn.c_proj", heads.transpose(1, 2).flatten(2))

    def _affine(self, name: str, x: Tensor) -> Tensor:
        # The file has (inputs, outputs), the transpose of a linear layer's weight.
        return x @ self._tensors[f"{name}.weight"] + self._tensors[f"{name}.bias"]

    def _normalised(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"]
        return F.layer_norm(x, weight.shape, weight, bias, self._epsilon)


def read_gpt2(folder: str | Path, *, device: str | torch.device = "cpu") -> GPT2:
    """Build GPT-2 from its published folder.

    Args:
        folder: Where `config.json` and `model.safetensors` are.
        device: Where the weights go.

    Returns:
        The model, for `output_states(model, tokens, head="lm_head")`. Tokens are yours to make,
        with the tokenizer that the model was trained with.

    Raises:
        FileError: If a file is missing, damaged or a pickle, or tensors do not fit each other or
            the configuration.
        UnsupportedModelError: If it is another model than GPT-2, or a variant of it that is not
            computed here.
    """
    root = Path(folder)
    tensors = _read_tensors(root / "model.safetensors")
    config = _read_config(root / "config.json")
    kind = config.get("model_type", "gpt2")
    if kind != "gpt2":
        raise UnsupportedModelError(
            f"`read_gpt2` reads GPT-2; '{root}' holds a model of the kind {kind!r}. Build it with "
            "the library it comes from, and pass it to `output_states`."
        )
    for flag, known in _FLAGS.items():
        if config.get(flag, known) is not known:
            raise UnsupportedModelError(
                f"`read_gpt2` computes GPT-2 with {flag} = {known}; '{root}/config.json' has "
                f"{config[flag]!r}. Build it with the library it comes from, and pass it to "
                "`output_states`."
            )
    gelu = str(config.get("activation_function", "gelu_new"))
    require_choice(gelu, _ACTIVATIONS, f"{root}/config.json: activation_function")
    heads = require_count(config.get("n_head"), f"{root}/config.json: n_head")
    # Some files have every name under "transformer.".
    named = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    _require_gpt2(named, heads, root)
    _require_config(config, named, root)
    epsilon = config.get("layer_norm_epsilon", 1e-5)
    return GPT2(
        {name: tensor.to(device) for name, tensor in named.items()},
        heads=heads,
        epsilon=require_positive(epsilon, f"{root}/config.json: layer_norm_epsilon"),
        gelu=_ACTIVATIONS[gelu],
    )


def _read_tensors(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        names = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        pickles = [name for name in names if name.endswith(_PICKLES)]
        if pickles or path.parent.suffix in _PICKLES:
            raise FileError(
                f"'{path.parent}' has weights as a pickle, {(*pickles, path.parent.name)[0]}, and "
                "no model.safetensors. A pickle can run code when it is read, and is never "
                "opened; get the safetensors file, or convert it where you trust it."
            )
        raise FileError(f"`read_gpt2(folder)` needs '{path}', which is not there.")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in list(file.keys())}
    except (SafetensorError, OSError) as error:
        raise FileError(
            f"'{path}' is no safetensors file, or damaged ({error}). Nothing else is opened: a "
            "pickle by that name could run code."
        ) from error


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(f"`read_gpt2(folder)` needs '{path}', a JSON file: {error}.") from error
    if not isinstance(config, dict):
        raise FileError(f"'{path}' must hold an object; got {type(config).__name__}.")
    return config


def _num_layers(tensors: dict[str, Tensor]) -> int:
    return len({name.split(".")[1] for name in tensors if name.startswith("h.")})


def _require_gpt2(tensors: dict[str, Tensor], heads: int, folder: Path) -> None:
    words = tensors.get("wte.weight")
    d = words.shape[1] if words is not None and words.ndim == 2 else 0
    wanted: dict[str, tuple[int, ...]] = {"wte.weight": (0, d), "wpe.weight": (0, d)}
    wanted |= {"ln_f.weight": (d,), "ln_f.bias": (d,)}
    sizes = {"attn.c_attn": (d, 3 * d), "mlp.c_fc": (d, 4 * d), "mlp.c_proj": (4 * d, d)}
    for i in range(_num_layers(tensors)):
        for sublayer in _LAYER:
            shape = sizes.get(sublayer, (d, d))
            wanted[f"h.{i}.{sublayer}.weight"] = shape[1:] if sublayer.startswith("ln") else shape
            wanted[f"h.{i}.{sublayer}.bias"] = shape[1:]
    for name, need in wanted.items():
        tensor = tensors.get(name)
        if tensor is None:
            raise FileError(
                f"'{folder}' lacks the tensor '{name}' of GPT-2. {near_matches(name, tensors)}"
            )
        # The number of words and of positions is free: it is 0 here.
        if (0, *tensor.shape[1:]) != need and tuple(tensor.shape) != need:
            raise FileError(
                f"'{folder}': '{name}' must be {need}, from the width of wte.weight; got "
                f"{tuple(tensor.shape)}."
            )
    if d % heads:
        raise FileError(f"'{folder}': {heads} heads do not divide the width {d}.")
    if not _num_layers(tensors):
        raise FileError(f"'{folder}' has no layers, tensors h.0.… and so on. Get the whole file.")


def _require_config(config: dict[str, Any], tensors: dict[str, Tensor], folder: Path) -> None:
    """Refuse a configuration that is of other tensors than those of the file."""
    words, width = tensors["wte.weight"].shape
    implied = {
        "vocab_size": words,
        "n_embd": width,
        "n_positions": len(tensors["wpe.weight"]),
        "n_layer": _num_layers(tensors),
        "n_inner": 4 * width,
    }
    for name, number in implied.items():
        said = config.get(name)
        if said is not None and said != number:
            raise FileError(
                f"'{folder}': config.json says {name} = {said!r}, but the tensors have {number}. "
                "The two files are of different models; get both from one place."
            )
    _require_head(config.get("tie_word_embeddings"), tensors, folder)


def _require_head(is_tied: bool | None, tensors: dict[str, Tensor], folder: Path) -> None:
    """Refuse an output layer of another vocabulary, or one that is not what the file says."""
    words, head = tensors["wte.weight"], tensors.get("lm_head.weight")
    if head is None:
        if is_tied is False:
            raise FileError(
                f"'{folder}' lacks the tensor 'lm_head.weight', though config.json says that words "
                "have another matrix to be read out by (tie_word_embeddings = false)."
            )
        return
    if head.shape != words.shape or head.dtype != words.dtype:
        raise FileError(
            f"'{folder}': 'lm_head.weight' must be {tuple(words.shape)} of {words.dtype}, as "
            f"'wte.weight' is; got {tuple(head.shape)} of {head.dtype}. The vocabularies do not "
            "match."
        )
    if is_tied and not torch.equal(head, words):
        raise FileError(
            f"'{folder}': config.json says that words are embedded and read out by one matrix "
            "(tie_word_embeddings = true), but 'lm_head.weight' is another than 'wte.weight'. "
            "Correct the setting, or take the tensor out."
        )


def _require_tokens(tokens: object, num_words: int) -> None:
    if not isinstance(tokens, Tensor):
        raise WrongTypeError(
            f"`output_states(tokens)` must be a tensor; got {type(tokens).__name__}."
        )
    if tokens.ndim != 2 or not tokens.numel() or tokens.dtype not in (torch.int64, torch.int32):
        raise ShapeError(
            "`output_states(tokens)` must be integers (N, T), one sequence or more; got "
            f"{tuple(tokens.shape)} of {tokens.dtype}."
        )
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= num_words:
        raise InvalidArgumentError(
            f"`output_states(tokens)` has tokens from {low} to {high}, but the model has "
            f"{num_words} words: the vocabularies do not match. Use the model's own tokenizer."
        )
