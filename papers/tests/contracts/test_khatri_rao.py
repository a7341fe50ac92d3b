"""Kronecker products of several layers, on every case of the table."""

import pytest
import torch

from eigenscape.curvature import KroneckerHessian
from eigenscape.testing import check_operator
from eigenscape_papers.papyan import KhatriRao
from tests.cases import TABLE, case
from tests.contracts.test_operators import RTOL, classes_of, close, layers_of


@pytest.mark.parametrize("name", [name for name in TABLE if name != "pure-function"])
def test_one_layer_alone_is_its_class_kronecker(name: str) -> None:
    c = case(name)
    for layer in layers_of(c.risk()):
        alone = classes_of(c, layer, 7)
        if alone is None:
            continue
        both, kronecker = KhatriRao(c.risk(7), [layer]), KroneckerHessian(c.risk(), layer)
        if kronecker.num_positions == 1:
            close(both.to_dense(), alone.to_dense())
            close(KhatriRao(c.risk(7), [layer], per_class=False).to_dense(), kronecker.to_dense())
        assert both.space.names == alone.space.names


@pytest.mark.parametrize("name", ["mlp-tanh", "cnn-batchnorm", "weights-smoothing"])
def test_khatri_rao_of_all_plain_layers(name: str) -> None:
    c = case(name)
    layers = [layer for layer in layers_of(c.risk()) if classes_of(c, layer, None) is not None]
    assert len(layers) > 1
    for per_class in (True, False):
        whole = KhatriRao(c.risk(), layers, per_class=per_class).to_dense()
        check_operator(KhatriRao(c.risk(7), layers, per_class=per_class), whole, rtol=RTOL)
        assert torch.linalg.eigvalsh(whole)[0] > -1e-12 * whole.norm()
