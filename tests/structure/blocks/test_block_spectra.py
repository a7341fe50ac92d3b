"""Spectra of blocks and their distances, where both are known."""

import math

import pytest
import torch
from scipy.spatial.distance import jensenshannon

from eigenscape.curvature import Hessian
from eigenscape.errors import InvalidArgumentError, NotSymmetricError, ShapeError
from eigenscape.operator import Dense
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from eigenscape.space import ParamSpace, Partition
from eigenscape.structure import block_spectra
from eigenscape.testing import dense_hessian, matrix_with_spectrum
from eigenscape_papers.networks import build


def made(*spectra, seed=0):
    """A block-diagonal matrix with these spectra, and one tensor for each."""
    parts = [matrix_with_spectrum(values, seed=seed + i) for i, values in enumerate(spectra)]
    A = torch.block_diag(*(part.double() for part in parts))
    space = ParamSpace({f"t{i}.w": (len(part),) for i, part in enumerate(parts)})
    return Dense((A + A.T) / 2, space=space), Partition.by_tensor(space)


def test_distances_by_hand() -> None:
    # The first is twice the second, the third has another size and a fifth of its mass elsewhere.
    operator, partition = made([1.0, 3.0], [2.0, 6.0], [1.0, 1.0, 3.0, 3.0, 3 * math.e])
    found = block_spectra(operator, partition, epsilon=1e-13)
    assert found.exact == (True, True, True)
    assert found.num_products == 9
    W = found.wasserstein
    assert float(W[0, 1]) == pytest.approx(math.log(2))
    # Masses ½, ½ against 0.4, 0.4, 0.2: 0.1 moves from 1 to 3, 0.2 from 3 to 3e.
    assert float(W[0, 2]) == pytest.approx(0.1 * math.log(3) + 0.2)
    torch.testing.assert_close(W, W.T)
    assert not W.diagonal().any()
    assert not found.jensen_shannon.diagonal().any()
    assert not found.wasserstein_floor.any()
    assert not found.jensen_shannon_floor.any()


def test_jensen_shannon_is_scipys() -> None:
    operator, partition = made([1.0, 3.0, 0.2], [2.0, 6.0], [1e-5, 1.0, -3.0])
    found = block_spectra(operator, partition, epsilon=1e-4, width=0.4)
    grid = torch.linspace(-15, 8, 6000, dtype=torch.float64)
    curves = [part.evaluate(grid)[0].numpy() for part in found.spectra]
    for a in range(3):
        for b in range(3):
            expected = jensenshannon(curves[a], curves[b], base=2)
            assert float(found.jensen_shannon[a, b]) == pytest.approx(expected, abs=1e-4)
    far, blocks = made([1.0, 1.0], [1e9, 1e9])
    assert float(block_spectra(far, blocks, epsilon=1e-3).jensen_shannon[0, 1]) == pytest.approx(1)


def test_a_spectrum_does_not_depend_on_the_basis() -> None:
    operator, partition = made([1.0, 3.0, 5.0], [1.0, 3.0, 5.0])
    found = block_spectra(operator, partition)
    assert float(found.wasserstein[0, 1]) < 1e-12
    assert float(found.jensen_shannon[0, 1]) < 1e-6


def test_large_blocks_by_quadrature_with_a_floor() -> None:
    """Two blocks of one spectrum are as near as their floors; one that is e² times as large not."""
    values = torch.linspace(1.0, 4.0, 160, dtype=torch.float64)
    operator, partition = made(values, values, math.e**2 * values)
    rough = block_spectra(operator, partition, num_steps=12, num_probes=4)
    true = block_spectra(operator, partition, num_steps=40, num_probes=4, epsilon=rough.epsilon)
    assert rough.exact == (False, False, False)
    assert true.exact == (True, True, True)
    assert rough.num_products == 3 * 48
    assert bool((rough.wasserstein_floor > 0).all())
    assert bool((rough.jensen_shannon_floor > 0).all())
    error = (rough.wasserstein - true.wasserstein).abs()
    floor = rough.wasserstein_floor
    assert bool((error <= 2 * (floor[:, None] + floor)).all())
    assert float(rough.wasserstein[0, 1]) < 0.1 * float(rough.wasserstein[0, 2])
    assert float(rough.jensen_shannon[0, 1]) < 0.3 * float(rough.jensen_shannon[0, 2])


def test_kinds_of_a_transformer_against_its_dense_hessian() -> None:
    torch.manual_seed(0)
    model = build("GPT-2x4x2", input_shape=(3,), num_classes=5).double()
    x, y = torch.randint(0, 5, (2, 4, 3)).unbind(0)
    H = Hessian(EmpiricalRisk(model, CrossEntropy(), (x, y)))
    partition = Partition.by_head(H.space, 2, split=True)
    found = block_spectra(H, partition)
    assert dict(zip(found.names, found.kinds, strict=True))["b2.head.1.v"] == "head.v"
    columns = found.columns()
    rows = list(zip(columns["kind"], columns["other kind"], columns["pairs"], strict=True))
    # Two blocks of two heads: 4 of each kind.
    assert ("head.q", "head.q", 6) in rows
    assert ("head.q", "head.k", 16) in rows
    theta = {name: p.detach() for name, p in model.named_parameters()}
    call = torch.func.functional_call
    full = dense_hessian(
        lambda p: torch.nn.functional.cross_entropy(
            call(model, p, (x,)).flatten(0, 1), y.flatten()
        ),
        theta,
    )
    for block, part in zip(partition, found.spectra, strict=True):
        i = block.index()
        expected = torch.linalg.eigvalsh(full[i[:, None], i])
        scale = float(expected.abs().max())
        torch.testing.assert_close(part.nodes[0], expected, rtol=1e-8, atol=1e-10 * scale)
    layers = block_spectra(H, Partition.by_layer(H.space))
    kinds = dict(zip(layers.names, layers.kinds, strict=True))
    assert kinds["b1-fc1"] == kinds["b2-fc1"] == "fc1"
    assert kinds["embed"] == "embed"


def test_given_kinds_and_names_of_digits_alone() -> None:
    space = ParamSpace({"0": (1,), "1": (1,), "blocks.0.qkv.2": (1,)})
    operator = Dense(torch.eye(3), space=space)
    partition = Partition.by_tensor(space)
    assert block_spectra(operator, partition).kinds == ("0", "1", "blocks.qkv")
    found = block_spectra(operator, partition, kinds=["a", "a", "b"])
    assert found.columns()["pairs"] == [1, 2]
    with pytest.raises(InvalidArgumentError, match="one kind for each of 3 blocks; got 1"):
        block_spectra(operator, partition, kinds=["a"])


def test_zero_blocks() -> None:
    space = ParamSpace({"a": (2,), "b": (3,)})
    found = block_spectra(Dense(torch.zeros(5, 5), space=space), Partition.by_tensor(space))
    assert not found.wasserstein.any()


def test_refusals() -> None:
    operator, partition = made([1.0, 2.0], [1.0])
    with pytest.raises(ShapeError, match="own space"):
        block_spectra(operator, Partition.by_tensor(ParamSpace({"x": (3,)})))
    with pytest.raises(NotSymmetricError, match="symmetric"):
        block_spectra(Dense(torch.arange(9.0).view(3, 3), space=operator.space), partition)
    with pytest.raises(InvalidArgumentError, match="num_probes"):
        block_spectra(operator, partition, num_probes=1)
    with pytest.raises(InvalidArgumentError, match="epsilon"):
        block_spectra(operator, partition, epsilon=0.0)
