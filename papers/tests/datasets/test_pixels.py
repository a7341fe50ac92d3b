import numpy as np
import pytest
import torch

from eigenscape.errors import UnknownNameError
from eigenscape_papers.datasets import (
    NORMALISATIONS,
    PixelScale,
    from_pixels,
    pixel_statistics,
    rescaled,
)

PIXELS = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (7, 2, 5, 3), dtype=np.uint8))


def test_statistics_are_those_of_numpy() -> None:
    scale = pixel_statistics(PIXELS)
    unit = PIXELS.numpy().astype(np.float64) / 255
    np.testing.assert_allclose(scale.mean, unit.mean((0, 2, 3)), rtol=1e-13)
    np.testing.assert_allclose(scale.std, unit.std((0, 2, 3)), rtol=1e-13)
    assert scale.how == "unit"
    sixteenths = pixel_statistics(PIXELS, largest=16)
    np.testing.assert_allclose(sixteenths.mean, np.array(scale.mean) * 255 / 16, rtol=1e-13)


def test_unit_pixels_lie_between_zero_and_one() -> None:
    inputs = from_pixels(PIXELS, pixel_statistics(PIXELS))
    assert inputs.dtype == torch.float32
    torch.testing.assert_close(inputs, PIXELS.float() / 255, rtol=0, atol=0)


@pytest.mark.parametrize("how", ["standard", "wu", "papyan", "dong"])
def test_standard_pixels_have_mean_zero_and_variance_one(how: str) -> None:
    inputs = from_pixels(PIXELS, pixel_statistics(PIXELS).named(how, "f(how=...)")).double()
    # float32 has 24 bits; 105 values a channel.
    torch.testing.assert_close(inputs.mean((0, 2, 3)), torch.zeros(2), rtol=0, atol=1e-6)
    torch.testing.assert_close(
        inputs.var((0, 2, 3), correction=0), torch.ones(2), atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("start", list(NORMALISATIONS))
@pytest.mark.parametrize("end", ["unit", "standard"])
def test_rescaled_is_what_loading_would_have_given(start: str, end: str, flat: bool) -> None:
    old = pixel_statistics(PIXELS).named(start, "f(how=...)")
    new = old.named(end, "f(how=...)")
    inputs, expected = from_pixels(PIXELS, old), from_pixels(PIXELS, new)
    if flat:
        inputs, expected = inputs.flatten(1), expected.flatten(1)
    # A few roundings of float32, of numbers up to about 2.
    torch.testing.assert_close(rescaled(inputs, old, new), expected, rtol=1e-6, atol=1e-6)


def test_a_constant_channel_is_only_shifted() -> None:
    flat = torch.full((3, 1, 2), 51, dtype=torch.uint8)
    scale = pixel_statistics(flat).named("standard", "f(how=...)")
    assert scale.std == (0.0,)
    assert float(from_pixels(flat, scale).abs().max()) < 1e-7


def test_unknown_normalisation_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"f\(how=\.\.\.\).*'unit'.*got 'imagenet'"):
        PixelScale((0.5,), (0.5,)).named("imagenet", "f(how=...)")


def test_sentences_say_whose_choice_it_was() -> None:
    scale = PixelScale((0.5,), (0.25,))
    assert "App. F.4" in scale.named("wu", "f").sentence()
    assert "our choice" in scale.named("papyan", "f").sentence()
    assert "our choice" in scale.named("dong", "f").sentence()
    assert "mean 0.5; standard deviation 0.25" in scale.named("standard", "f").sentence()
