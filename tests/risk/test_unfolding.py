"""Windows times weight against PyTorch's own convolutions."""

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from eigenscape.risk import is_convolution, is_matrix, num_groups
from eigenscape.risk.unfolding import has_inputs_first, is_transposed_linear, windows

SETTINGS: list[tuple[type[nn.Module], int, dict[str, Any]]] = [
    (nn.Conv1d, 1, {"kernel_size": 3, "stride": 2, "padding": 1, "dilation": 2}),
    (nn.Conv1d, 1, {"kernel_size": 3, "padding": 2, "padding_mode": "circular"}),
    (nn.Conv2d, 2, {"kernel_size": (2, 3), "stride": (3, 1), "padding": (1, 0)}),
    (nn.Conv2d, 2, {"kernel_size": (2, 4), "padding": "same"}),
    (nn.Conv2d, 2, {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"}),
    (nn.Conv3d, 3, {"kernel_size": (1, 2, 3), "padding": (0, 1, 1), "dilation": (1, 2, 1)}),
    (nn.ConvTranspose1d, 1, {"kernel_size": 3, "stride": 3, "padding": 2, "output_padding": 1}),
    (nn.ConvTranspose1d, 1, {"kernel_size": 2, "padding": 1, "dilation": 3}),
    (nn.ConvTranspose2d, 2, {"kernel_size": (3, 2), "stride": (2, 1), "dilation": (1, 2)}),
    (nn.ConvTranspose2d, 2, {"kernel_size": 1, "padding": 1}),
    (nn.ConvTranspose3d, 3, {"kernel_size": 2, "stride": (1, 2, 3)}),
]


@pytest.mark.parametrize(("kind", "rank", "settings"), SETTINGS)
def test_windows_times_the_weight_are_the_output(
    kind: Any, rank: int, settings: dict[str, Any]
) -> None:
    module = kind(2, 3, bias=False, **settings)
    x = torch.randn(4, 2, *range(5, 5 + rank))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using padding='same'")
        y = module(x)
    rows = windows(module, x, y.shape[2:])
    weight = module.weight.transpose(0, 1) if has_inputs_first(module) else module.weight
    found = rows @ weight.flatten(1).T
    assert rows.shape == (4, y[0, 0].numel(), weight[0].numel())
    torch.testing.assert_close(found, y.flatten(2).transpose(1, 2))


def test_transposed_convolutions_may_be_told_their_size() -> None:
    module = nn.ConvTranspose2d(2, 3, 3, stride=2, bias=False)
    x = torch.randn(1, 2, 3, 3)
    for size in ((7, 7), (8, 7), (8, 8)):
        y = module(x, output_size=size)
        rows = windows(module, x, y.shape[2:])
        found = rows @ module.weight.transpose(0, 1).flatten(1).T
        torch.testing.assert_close(found[0].T.view(3, *size), y[0])


class Conv1D(nn.Module):
    """GPT-2's, by name and fields."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.weight = nf, nn.Parameter(torch.zeros(nx, nf))


def test_kinds_of_layers() -> None:
    own = Conv1D(3, 2)
    assert is_transposed_linear(own)
    assert is_transposed_linear(type("Sub", (Conv1D,), {})(3, 2))
    assert not is_transposed_linear(nn.Conv1d(3, 2, 1))
    own.weight = nn.Parameter(torch.zeros(2, 4))  # not its width
    assert not is_transposed_linear(own)
    assert is_matrix(nn.Linear(2, 2))
    assert is_matrix(nn.ConvTranspose3d(2, 2, 1))
    assert not is_matrix(nn.Embedding(2, 2))
    assert is_convolution(nn.Conv3d(2, 2, 1))
    assert not is_convolution(nn.Linear(2, 2))
    assert [has_inputs_first(m) for m in (nn.Linear(2, 2), nn.ConvTranspose1d(2, 2, 1))] == [0, 1]
    assert [num_groups(m) for m in (nn.Linear(2, 2), nn.Conv1d(4, 4, 1, groups=2))] == [1, 2]
