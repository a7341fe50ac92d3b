import pytest
import torch
from torch import nn

from eigenscape_papers.datasets import DataSet
from eigenscape_papers.papyan import (
    DIGITS_MLP,
    MLP,
    RATES,
    RESNET_FEW,
    SMALL,
    SMALL_SIZES,
    VGG,
    VGG_FEW,
    VGG_SIZES,
    network,
)
from eigenscape_papers.studies import STUDIES


def test_networks_are_trained_as_in_the_paper() -> None:
    cast = network("VGG11_bn", "cifar10", epochs=350, samples=1360)
    assert cast.rates == RATES
    assert (cast.recipe.batch_size, cast.samples) == (128, 1360)
    for rate in RATES:
        recipe = cast.with_rate(rate)
        assert (recipe.optimizer.momentum, recipe.optimizer.weight_decay) == (0.9, 5e-4)
        rates = recipe.learning_rates()
        tenths = [rates[0], rates[117], rates[234]]  # 350/3 is 116.7, and 700/3 is 233.3
        assert tenths == pytest.approx([rate, 0.1 * rate, 0.01 * rate])
        assert rates[116] == rates[0]


def test_one_rate_is_no_choice() -> None:
    cast = network("F-8", "digits", epochs=3, rates=(0.3,))
    assert cast.rates == ()
    assert cast.recipe.optimizer.learning_rate == 0.3


def test_networks_of_the_paper() -> None:
    assert len(VGG) == len(MLP) == 3
    assert {(cast.data, cast.recipe.epochs) for cast in VGG} == {
        ("mnist", 24),
        ("fashion-mnist", 30),
        ("cifar10", 60),
    }
    assert {cast.recipe.epochs for cast in MLP} == {60}
    assert all(cast.rates == RATES for cast in (*VGG, *MLP, VGG_FEW, RESNET_FEW))
    sizes = [cast.samples for cast in VGG_SIZES]
    assert sizes == [100, 190, 370, 710, 1360, 2630, 5060]
    assert {cast.keep_epochs for cast in VGG_SIZES} == {(1, 10, 50)}


def test_the_residual_network_has_batch_norm() -> None:
    # Of the size of MNIST's images, whose files may not be here.
    data = DataSet("two", torch.zeros(2, 1, 28, 28), torch.arange(2), num_classes=10)
    net = RESNET_FEW.build(0, data)
    assert any(isinstance(module, nn.BatchNorm2d) for module in net.modules())


def test_notes_say_what_is_shorter_than_in_the_paper() -> None:
    """Numbers in words stand for the settings beside them."""
    notes = {name: study.settings["paper"].note for name, study in STUDIES.items()}
    first, second, third = (cast.recipe.epochs for cast in VGG)
    trained = f"{first} epochs on MNIST, {second} on Fashion-MNIST and {third} on CIFAR-10"
    assert f"{trained}, where Papyan has 200, 200 and 350." in notes["papyan-spectra"]
    samples = STUDIES["papyan-spectra"].settings["paper"].options["samples"]
    assert f"{samples} training and {samples} test samples" in notes["papyan-spectra"]
    for name in ("papyan-layers", "papyan-kronecker"):
        assert f"{MLP[0].recipe.epochs} epochs, where Papyan has 350" in notes[name]
        assert f"{STUDIES[name].settings['paper'].options['samples']} samples" in notes[name]
    a_class = [str((cast.samples or 0) // 10) for cast in VGG_SIZES]
    sizes = f"{', '.join(a_class[:-1])} and {a_class[-1]} samples a class"
    assert f"seven: {sizes}" in notes["papyan-dynamics"]
    assert "150 epochs" in notes["papyan-dynamics"]
    assert "files were not at hand" in notes["papyan-spectra"]
    assert "5000 samples of each class of MNIST" in notes["papyan-spectra"]


def test_batch_norm_stands_before_relu() -> None:
    """Footnote 4: what goes into the next layer has no negative entries, as it has after a norm."""
    for cast in (SMALL, SMALL_SIZES[0], DIGITS_MLP):
        data = cast.load()
        network = cast.build(0, data)
        names = dict(network.named_modules())
        assert isinstance(names["bn-fc1"], nn.BatchNorm1d)
        seen: list[torch.Tensor] = []
        names["fc2"].register_forward_pre_hook(
            lambda _, inputs, seen=seen: seen.append(inputs[0].detach())
        )
        network(data.inputs)
        assert float(seen[0].min()) == 0.0 < float(seen[0].max())
