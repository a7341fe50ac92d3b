"""Tiny models of libraries that people use, with random weights, and data to match.

Each is made from a configuration, so that nothing is downloaded, and its library is imported when
it is made.
"""

import copy
import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

import eigenscape as es
from tests.strangers.oracle import Case

WORDS, CLASSES, SAMPLES, LENGTH = 31, 4, 4, 7


@dataclass
class Animal:
    """A model, what it is called with, and what its output is compared with.

    Attributes:
        model: The model, in float32.
        inputs: Its keyword arguments, or its arguments in a tuple.
        target: Classes, next words or numbers.
        task: "classes", "next words" or "numbers".
        logits: How to get at the output that counts.
        is_whole: Whether samples see each other, or the first dimension counts something else.
    """

    model: nn.Module
    inputs: dict[str, Tensor] | tuple[Tensor, ...]
    target: Tensor
    task: str = "classes"
    logits: Callable[[Any], Tensor] = lambda out: getattr(out, "logits", out)
    is_whole: bool = False

    def to(self, dtype: torch.dtype) -> "Animal":
        """Copy it in another precision."""

        def cast(tensor: Tensor) -> Tensor:
            return tensor.to(dtype) if tensor.is_floating_point() else tensor

        inputs, target = tree_map_only(Tensor, cast, (self.inputs, self.target))
        model = copy.deepcopy(self.model).to(dtype)
        return replace(self, model=model, inputs=inputs, target=target)

    def case(self) -> Case:
        """Return it as a user would bring it, with the loss in plain torch beside it."""
        losses = {
            "classes": es.CrossEntropy(),
            "next words": es.CrossEntropy(next_token=True),
            "numbers": es.SquaredError(),
        }
        batch: Any = (self.inputs, self.target)
        if isinstance(self.inputs, dict):
            batch = {**self.inputs, "labels": self.target}
        return Case(
            self.model,
            losses[self.task],
            [batch],
            output=self.output,
            of_output=self.loss,
            options={"sample_dim": None} if self.is_whole else {},
        )

    def output(self) -> Tensor:
        if isinstance(self.inputs, dict):
            return self.logits(self.model(**self.inputs))
        return self.logits(self.model(*self.inputs))

    def loss(self, z: Tensor) -> Tensor:
        if self.task == "numbers":
            return 0.5 * (z - self.target).square().sum() / len(z)
        y = self.target
        if self.task == "next words":
            z, y = z[:, :-1], y[:, 1:]
        return F.cross_entropy(z.flatten(0, -2), y.flatten())


Maker = Callable[[], Animal]
# Of the sick, autograd's second derivative is not that of the function.
ZOO: dict[str, tuple[str, Maker]] = {}
SICK: dict[str, tuple[str, Maker]] = {}


def animal(library: str, *, is_sick: bool = False) -> Callable[[Maker], Maker]:
    """List a model of a library."""

    def listed(maker: Maker) -> Maker:
        (SICK if is_sick else ZOO)[maker.__name__] = library, maker
        return maker

    return listed


def words(*shape: int) -> Tensor:
    return torch.randint(1, WORDS, shape or (SAMPLES, LENGTH))


def classes(*shape: int) -> Tensor:
    return torch.randint(0, CLASSES, shape or (SAMPLES,))


def padding() -> Tensor:
    mask = torch.ones(SAMPLES, LENGTH, dtype=torch.int64)
    mask[-1, LENGTH // 2 :] = 0
    return mask


def of_transformers(config: str, model: str, **settings: Any) -> nn.Module:
    """Make a model from its configuration; nothing random is left in it."""
    library = importlib.import_module("transformers")
    made: nn.Module = getattr(library, model)(getattr(library, config)(**settings))
    return made.eval()


SMALL = {
    "vocab_size": WORDS,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def speaks(model: nn.Module, **more: Tensor) -> Animal:
    """A model of the next word."""
    ids = words()
    return Animal(model, {"input_ids": ids, **more}, ids, "next words")


def reads(model: nn.Module) -> Animal:
    """A model that tells kinds of text, some of it padded."""
    return Animal(model, {"input_ids": words(), "attention_mask": padding()}, classes())


def sees(model: nn.Module, size: int = 8, channels: int = 3) -> Animal:
    pixels = torch.randn(SAMPLES, channels, size, size)
    return Animal(model, {"pixel_values": pixels}, classes())


# --- words ---


@animal("transformers")
def gpt2() -> Animal:
    small = {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": WORDS}
    return speaks(of_transformers("GPT2Config", "GPT2LMHeadModel", **small, **ENDS))


@animal("transformers")
def llama() -> Animal:
    heads = {"num_key_value_heads": 1}
    return speaks(of_transformers("LlamaConfig", "LlamaForCausalLM", **SMALL, **heads, **ENDS))


@animal("transformers")
def qwen2_with_tied_words() -> Animal:
    more = {"num_key_value_heads": 1, "tie_word_embeddings": True}
    return speaks(of_transformers("Qwen2Config", "Qwen2ForCausalLM", **SMALL, **more, **ENDS))


@animal("transformers")
def mixtral() -> Animal:
    more = {"num_key_value_heads": 1, "num_local_experts": 3, "num_experts_per_tok": 2}
    more |= {"experts_implementation": "eager"}  # the others know no float64
    return speaks(of_transformers("MixtralConfig", "MixtralForCausalLM", **SMALL, **more, **ENDS))


@animal("transformers")
def gemma() -> Animal:
    more = {"num_key_value_heads": 1, "head_dim": 4}
    return speaks(of_transformers("GemmaConfig", "GemmaForCausalLM", **SMALL, **more, **ENDS))


@animal("transformers")
def gpt_neox() -> Animal:
    return speaks(of_transformers("GPTNeoXConfig", "GPTNeoXForCausalLM", **SMALL, **ENDS))


@animal("transformers")
def bloom() -> Animal:
    small = {"hidden_size": 8, "n_layer": 2, "n_head": 2, "vocab_size": WORDS}
    return speaks(of_transformers("BloomConfig", "BloomForCausalLM", **small, **ENDS))


@animal("transformers")
def opt() -> Animal:
    more = {"ffn_dim": 12, "word_embed_proj_dim": 8, "dropout": 0.0}
    return speaks(of_transformers("OPTConfig", "OPTForCausalLM", **SMALL, **more, **ENDS))


@animal("transformers")
def mamba() -> Animal:
    small = {"vocab_size": WORDS, "hidden_size": 8, "state_size": 4, "num_hidden_layers": 2}
    return speaks(of_transformers("MambaConfig", "MambaForCausalLM", **small, **ENDS))


@animal("transformers")
def bert() -> Animal:
    return reads(
        of_transformers("BertConfig", "BertForSequenceClassification", num_labels=CLASSES, **SMALL)
    )


@animal("transformers")
def roberta_tells_words() -> Animal:
    model = of_transformers(
        "RobertaConfig", "RobertaForTokenClassification", num_labels=CLASSES, **SMALL, **ENDS
    )
    target = classes(SAMPLES, LENGTH)
    target[-1, LENGTH // 2 :] = -100
    inputs = {"input_ids": words(), "attention_mask": padding()}
    return Animal(model, inputs, target)


@animal("transformers")
def modernbert() -> Animal:
    more = {"num_labels": CLASSES, "cls_token_id": 1, "sep_token_id": 2, **ENDS}
    return reads(
        of_transformers("ModernBertConfig", "ModernBertForSequenceClassification", **SMALL, **more)
    )


@animal("transformers")
def electra() -> Animal:
    more = {"num_labels": CLASSES, "embedding_size": 6}
    return reads(
        of_transformers("ElectraConfig", "ElectraForSequenceClassification", **SMALL, **more)
    )


@animal("transformers")
def deberta() -> Animal:
    more = {"num_labels": CLASSES, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
    return reads(
        of_transformers("DebertaV2Config", "DebertaV2ForSequenceClassification", **SMALL, **more)
    )


@animal("transformers")
def t5() -> Animal:
    small = {"vocab_size": WORDS, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 1}
    more = {"num_heads": 2, "pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 2}
    model = of_transformers("T5Config", "T5ForConditionalGeneration", **small, **more)
    inputs = {"input_ids": words(), "decoder_input_ids": words(SAMPLES, 5)}
    return Animal(model, inputs, words(SAMPLES, 5))


@animal("transformers")
def bart() -> Animal:
    small = {"vocab_size": WORDS, "d_model": 8, "max_position_embeddings": 16, "dropout": 0.0}
    sides = {
        f"{side}_{what}": value
        for side in ("encoder", "decoder")
        for what, value in {"layers": 1, "attention_heads": 2, "ffn_dim": 12}.items()
    }
    model = of_transformers("BartConfig", "BartForConditionalGeneration", **small, **sides, **ENDS)
    inputs = {"input_ids": words(), "decoder_input_ids": words(SAMPLES, 5)}
    return Animal(model, inputs, words(SAMPLES, 5))


# --- images and sound ---


@animal("transformers")
def vision_transformer() -> Animal:
    small = {key: SMALL[key] for key in SMALL if key not in ("vocab_size",)}
    more = {"image_size": 8, "patch_size": 4, "num_labels": CLASSES}
    return sees(of_transformers("ViTConfig", "ViTForImageClassification", **small, **more))


@animal("transformers")
def swin() -> Animal:
    small = {"image_size": 16, "patch_size": 2, "embed_dim": 4, "depths": [1, 1]}
    more = {"num_heads": [1, 2], "window_size": 4, "num_labels": CLASSES}
    return sees(of_transformers("SwinConfig", "SwinForImageClassification", **small, **more), 16)


@animal("transformers")
def resnet() -> Animal:
    small = {"embedding_size": 4, "hidden_sizes": [4, 6], "depths": [1, 1]}
    more = {"layer_type": "basic", "num_labels": CLASSES}
    return sees(
        of_transformers("ResNetConfig", "ResNetForImageClassification", **small, **more), 16
    )


@animal("transformers")
def convnext() -> Animal:
    small = {"hidden_sizes": [4, 6], "depths": [1, 1], "num_stages": 2, "patch_size": 2}
    model = of_transformers(
        "ConvNextConfig", "ConvNextForImageClassification", num_labels=CLASSES, **small
    )
    return sees(model, 16)


@animal("transformers")
def whisper() -> Animal:
    small = {"vocab_size": WORDS, "d_model": 8, "num_mel_bins": 5, "max_source_positions": 6}
    sides = {
        f"{side}_{what}": value
        for side in ("encoder", "decoder")
        for what, value in {"layers": 1, "attention_heads": 2, "ffn_dim": 12}.items()
    }
    more = {"max_target_positions": 16, "decoder_start_token_id": 1}
    model = of_transformers(
        "WhisperConfig", "WhisperForConditionalGeneration", **small, **sides, **more, **ENDS
    )
    inputs = {
        "input_features": torch.randn(SAMPLES, 5, 12),
        "decoder_input_ids": words(SAMPLES, 5),
    }
    return Animal(model, inputs, words(SAMPLES, 5))


class ClassesLast(nn.Module):
    """Scores of classes as the last dimension, where ours are."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).movedim(1, -1)


@animal("transformers", is_sick=True)
def wav2vec2() -> Animal:
    """Its positions come from a layer with `weight_norm`."""
    small = {key: SMALL[key] for key in SMALL if key != "max_position_embeddings"}
    convolutions = {"conv_dim": [4, 4], "conv_stride": [2, 2], "conv_kernel": [3, 3]}
    places = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    more = {"num_feat_extract_layers": 2, "classifier_proj_size": 6, "num_labels": CLASSES}
    model = of_transformers(
        "Wav2Vec2Config",
        "Wav2Vec2ForSequenceClassification",
        **small,
        **convolutions,
        **places,
        **more,
    )
    return Animal(model, {"input_values": torch.randn(SAMPLES, 64)}, classes())


@animal("monai")
def segmenting_unet() -> Animal:
    UNet = importlib.import_module("monai.networks.nets").UNet
    model = UNet(
        spatial_dims=2, in_channels=1, out_channels=CLASSES, channels=(4, 6), strides=(2,)
    ).eval()
    pixels = torch.randn(SAMPLES, 1, 8, 8)
    return Animal(ClassesLast(model), (pixels,), classes(SAMPLES, 8, 8))


@animal("timm")
def timm_vision_transformer() -> Animal:
    create = importlib.import_module("timm").create_model
    small = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 1, "num_heads": 2}
    model = create("vit_tiny_patch16_224", num_classes=CLASSES, **small).eval()
    return Animal(model, (torch.randn(SAMPLES, 3, 8, 8),), classes())


@animal("open_clip")
def clip_text_tower() -> Animal:
    TextTransformer = importlib.import_module("open_clip.transformer").TextTransformer
    model = TextTransformer(
        context_length=LENGTH, vocab_size=WORDS, width=8, heads=2, layers=1, output_dim=CLASSES
    ).eval()
    return Animal(model, (words(),), classes())


# --- diffusion ---


class Sample(nn.Module):
    """The tensor out of the object that models of diffusers return."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Tensor) -> Tensor:
        return self.model(*args, return_dict=False)[0]


def denoises(model: nn.Module, *more: Tensor) -> Animal:
    pixels, target = torch.randn(SAMPLES, 2, 8, 8), torch.randn(SAMPLES, 2, 8, 8)
    times = torch.tensor([1, 5, 9, 20])
    return Animal(Sample(model.eval()), (pixels, times, *more), target, "numbers")


@animal("diffusers")
def unet_of_diffusion() -> Animal:
    UNet = importlib.import_module("diffusers").UNet2DModel
    model = UNet(
        sample_size=8,
        in_channels=2,
        out_channels=2,
        layers_per_block=1,
        block_out_channels=(4, 4),
        norm_num_groups=2,
        attention_head_dim=2,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    return denoises(model)


@animal("diffusers")
def unet_with_conditions() -> Animal:
    UNet = importlib.import_module("diffusers").UNet2DConditionModel
    model = UNet(
        sample_size=8,
        in_channels=2,
        out_channels=2,
        layers_per_block=1,
        block_out_channels=(4,),
        norm_num_groups=2,
        attention_head_dim=2,
        cross_attention_dim=6,
        down_block_types=("CrossAttnDownBlock2D",),
        up_block_types=("CrossAttnUpBlock2D",),
    )
    return denoises(model, torch.randn(SAMPLES, 3, 6))


@animal("diffusers")
def autoencoder() -> Animal:
    Autoencoder = importlib.import_module("diffusers").AutoencoderKL
    model = Autoencoder(
        in_channels=2, out_channels=2, block_out_channels=(4,), norm_num_groups=2, latent_channels=2
    )
    pixels = torch.randn(SAMPLES, 2, 8, 8)
    return Animal(Sample(model.eval()), (pixels,), pixels.clone(), "numbers")


# --- graphs ---


def graph(kind: str, **settings: Any) -> Animal:
    """Classes of the nodes of one graph: nodes see each other."""
    Model = getattr(importlib.import_module("torch_geometric.nn.models"), kind)
    model = Model(5, 6, num_layers=2, out_channels=CLASSES, act="tanh", **settings).eval()
    edges = torch.randint(0, 9, (2, 24))
    return Animal(model, (torch.randn(9, 5), edges), classes(9), is_whole=True)


@animal("torch_geometric")
def graph_convolutions() -> Animal:
    return graph("GCN")


@animal("torch_geometric")
def graph_attention() -> Animal:
    return graph("GAT", heads=2, v2=True)


@animal("torch_geometric")
def graph_isomorphism() -> Animal:
    return graph("GIN")


# --- adapters and frames ---


def adapted(**settings: Any) -> nn.Module:
    """BERT with an adapter: only its weights are differentiated, and they are no longer zero."""
    peft = importlib.import_module("peft")
    kind = settings.pop("kind")
    model = peft.get_peft_model(bert().model, getattr(peft, kind)(task_type="SEQ_CLS", **settings))
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(0.3 * torch.randn_like(p))
    return model.eval()


@animal("peft")
def low_rank_adapter() -> Animal:
    settings = {"r": 2, "lora_alpha": 4, "target_modules": ["query", "value"]}
    return reads(adapted(kind="LoraConfig", **settings))


@animal("peft")
def scaling_adapter() -> Animal:
    modules = {"target_modules": ["key", "value", "output.dense"]}
    return reads(adapted(kind="IA3Config", feedforward_modules=["output.dense"], **modules))


@animal("peft")
def prompt_adapter() -> Animal:
    return reads(adapted(kind="PromptTuningConfig", num_virtual_tokens=3))


@animal("peft", is_sick=True)
def adapter_with_a_detached_norm() -> Animal:
    settings = {"r": 2, "lora_alpha": 4, "target_modules": ["query"], "use_dora": True}
    return reads(adapted(kind="LoraConfig", **settings))


@animal("lightning")
def lightning_module() -> Animal:
    lightning = importlib.import_module("lightning")

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, CLASSES))

        def forward(self, x: Tensor) -> Tensor:
            self.log_of_calls = getattr(self, "log_of_calls", 0) + 1
            return self.body(x)

        def training_step(self, batch: Any, number: int) -> Tensor:
            return F.cross_entropy(self(batch[0]), batch[1])

    return Animal(Net().eval(), (torch.randn(SAMPLES, 5),), classes())


@animal("gpytorch")
def deep_kernel() -> Animal:
    """Features, their kernel with fixed points, and the mean of a Gaussian process."""
    gpytorch = importlib.import_module("gpytorch")

    class Regression(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
            self.points = nn.Parameter(torch.randn(3, 2))
            self.weights = nn.Parameter(torch.randn(3, 1))

        def forward(self, x: Tensor) -> Tensor:
            return self.kernel(self.features(x), self.points).to_dense() @ self.weights

    return Animal(Regression(), (torch.randn(SAMPLES, 5),), torch.randn(SAMPLES, 1), "numbers")


@animal("gpytorch", is_sick=True)
def kernel_of_fixed_points() -> Animal:
    """Of inputs that are not differentiated, gpytorch has a backward pass of its own."""
    gpytorch = importlib.import_module("gpytorch")

    class Kernel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
            self.register_buffer("points", torch.randn(3, 5))
            self.weights = nn.Parameter(torch.randn(3, 1))

        def forward(self, x: Tensor) -> Tensor:
            return self.kernel(x, self.points).to_dense() @ self.weights

    return Animal(Kernel(), (torch.randn(SAMPLES, 5),), torch.randn(SAMPLES, 1), "numbers")
