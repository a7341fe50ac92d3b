"""Our convolution kernels against PyTorch's convolution and its derivatives, in float64.

Without a GPU Triton interprets them; shapes are unequal, so that a swapped index shows.
"""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from eigenscape_papers.ensemble import _fused

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Networks, samples, channels in, rows, columns, channels out, kernel, stride, padding.
CASES = {
    "plain": (2, 3, 3, 12, 11, 6, (5, 3), (1, 1), (0, 0)),
    "strides and padding": (3, 2, 5, 9, 10, 7, (3, 5), (2, 1), (1, 2)),
    "more channels than a block": (2, 1, 18, 5, 4, 17, (2, 1), (2, 1), (0, 1)),
    "one network, one channel": (1, 5, 1, 8, 8, 16, (5, 5), (1, 1), (2, 2)),
    "windows that leave a border": (2, 2, 2, 8, 9, 3, (2, 2), (3, 4), (0, 0)),
    "one pixel": (1, 1, 2, 1, 1, 2, (1, 1), (1, 1), (0, 0)),
}


@pytest.mark.parametrize(("name", "bias"), [*((name, True) for name in CASES), ("plain", False)])
def test_convolution_and_its_gradients(name: str, bias: bool) -> None:
    S, B, inputs, H, W, outputs, kernel, stride, padding = CASES[name]
    x = torch.randn(S, B, inputs, H, W, device=DEVICE).requires_grad_()
    w = torch.randn(S, outputs, inputs, *kernel, device=DEVICE).requires_grad_()
    b = torch.randn(S, outputs, device=DEVICE).requires_grad_()
    with torch.enable_grad():
        pairs = zip(x, w, b if bias else [None] * S, strict=True)
        y = torch.stack([F.conv2d(*one, stride, padding) for one in pairs])
    r = torch.randn_like(y)
    dx, dw = torch.autograd.grad(y, (x, w), r)
    x, w, b = x.detach(), w.detach(), b.detach()
    found = _fused.convolution(x, w, b if bias else None, stride, padding)
    torch.testing.assert_close(found, y.detach())
    torch.testing.assert_close(_fused.gradient_of_images(w, r, x.shape, stride, padding), dx)
    weights, biases = _fused.gradient_of_weights(x, r, w.shape, stride, padding)
    torch.testing.assert_close(weights, dw)
    torch.testing.assert_close(biases, r.sum((1, 3, 4)))
    assert weights.is_contiguous()
    assert biases.is_contiguous()


def test_parts_of_a_weight_gradient_hold_every_position_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, r = torch.randn(2, 7, 3, 9, 8, device=DEVICE), torch.randn(2, 7, 4, 7, 6, device=DEVICE)
    shape = torch.Size((2, 4, 3, 3, 3))
    found = []
    for blocks in (1, 12, 10_000):
        monkeypatch.setattr(_fused, "_BLOCKS", blocks)
        found.append(_fused.gradient_of_weights(x, r, shape, (1, 1), (0, 0))[0])
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


def test_a_layout_that_is_not_contiguous() -> None:
    x = torch.randn(2, 3, 6, 5, 4, device=DEVICE).movedim(-1, 2)
    w = torch.randn(2, 3, 4, 2, 2, device=DEVICE).transpose(3, 4)
    y = torch.stack([F.conv2d(a, k) for a, k in zip(x, w, strict=True)])
    torch.testing.assert_close(_fused.convolution(x, w, None, (1, 1), (0, 0)), y)
