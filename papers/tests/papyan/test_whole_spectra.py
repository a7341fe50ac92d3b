import dataclasses
import math

import pytest
import torch
from torch import nn

from eigenscape.curvature import ClassGradients, GaussNewton
from eigenscape.operator import Dense
from eigenscape_papers.datasets import DataSet
from eigenscape_papers.ensemble import SGD, Recipe
from eigenscape_papers.papyan import whole_spectra as whole
from eigenscape_papers.runner import Cast, Networks, Own, Workshop
from papers.tests.papyan.test_spectra_study import NARROW, hessian


@pytest.fixture(scope="module")
def networks(shop: Workshop) -> Networks:
    return shop.networks(NARROW)


def test_large_matrices_give_what_small_ones_give(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    risk = networks.risk(0)
    exact = torch.linalg.eigvalsh(hessian(networks, 0, "train")).flip(0)
    small = whole.take_spectrum(whole.hessian_parts(risk)["H"], 6)
    monkeypatch.setattr(whole, "DENSE", 10)
    parts = whole.hessian_parts(risk)
    assert not any(isinstance(part, Dense) for part in parts.values())
    large = whole.take_spectrum(parts["H"], 6)
    for found in (small, large):
        torch.testing.assert_close(found.top, exact[:6])
        assert float(found.counts.sum()) == pytest.approx(len(exact) - 6)
    assert small.bulk_mean() == pytest.approx(float(exact[6:].abs().mean()))
    assert small.bulk_rms() == pytest.approx(float(exact[6:].square().mean().sqrt()))
    assert small.lowest == pytest.approx(float(exact[-1]))
    # Four probes of 330 numbers: their noise.
    assert large.bulk_mean() == pytest.approx(small.bulk_mean(), rel=0.3)
    assert (small.num_products, large.num_products > 0) == (0, True)
    monkeypatch.setattr(whole, "LONG", 10)
    long = whole.take_spectrum(parts["H"], 6)
    assert long.num_products <= large.num_products - (4 * 256 - 128)
    assert len(long.nodes) == 128
    # Eigenvalues are off by the square of the tolerance, 1e-3, over the distance of the next.
    torch.testing.assert_close(long.top, exact[:6], rtol=1e-5, atol=0.0)


def test_parts_take_a_matrix_that_is_there(networks: Networks) -> None:
    risk = networks.risk(0)
    gradients = ClassGradients(risk)
    G = whole.formed(gradients.total)
    assert whole.hessian_parts(risk, G)["G"] is G
    assert whole.gradient_parts(gradients, G)["G"] is G
    torch.testing.assert_close(whole.hessian_parts(risk)["G"].to_dense(), G.to_dense())


def test_more_eigenvalues_may_be_left_out() -> None:
    values = torch.tensor([9.0, -8.0, 4.0, 3.0, -2.0, 1.0])
    found = whole.take_spectrum(Dense(torch.diag(values)), 1)
    assert found.bulk_mean() == pytest.approx((8 + 4 + 3 + 2 + 1) / 5)
    assert found.bulk_mean(skip=2) == pytest.approx((8 + 2 + 1) / 3)  # without 4 and 3
    # A node that stands for two, of which one is left out.
    lumped = whole.Spectrum(
        torch.tensor([9.0]), torch.tensor([1.0, 5.0]), torch.tensor([3.0, 2.0]), 1.0, 6, 0
    )
    assert lumped.bulk_mean(skip=1) == pytest.approx((5 + 3) / 4)


@pytest.mark.parametrize(
    ("middles", "number"), [((0.0, -2.0, -4.0), 3), ((0.0, -0.3, -0.6), 1), ((0.0, -2.0, -9.0), 2)]
)
def test_bulks_are_counted(middles: tuple[float, ...], number: int) -> None:
    spread = torch.linspace(-0.3, 0.3, 40, dtype=torch.float64)
    values = 10 ** torch.cat([middle + spread for middle in middles])  # 10⁻⁹ is too small to count
    assert whole.take_spectrum(Dense(torch.diag(values)), 5).num_bulks() == number


def test_a_single_eigenvalue_is_no_bulk() -> None:
    values = torch.cat([torch.tensor([100.0]), torch.linspace(0.5, 1.0, 40)]).double()
    assert whole.take_spectrum(Dense(torch.diag(values)), 1).num_bulks() == 1


def test_curves_hold_every_eigenvalue() -> None:
    values = torch.logspace(-3, 1, 40, dtype=torch.float64)
    found = whole.take_spectrum(Dense(torch.diag(values)), 3)
    x, y = found.log_curve(1e-5, 1e3)
    assert float(torch.trapezoid(y, x.log10())) == pytest.approx(40, rel=1e-3)
    line, stems = found.marks("first", None, 0.2)
    area = torch.trapezoid(torch.tensor(line.y), torch.tensor(line.x))
    assert float(area) == pytest.approx(37 / 40, rel=1e-2)
    assert stems.y[0] == pytest.approx(1 / (40 * 0.2 * math.sqrt(2 * math.pi)))
    zoomed = found.line("first", None, 0.2, (-0.5, 0.5))
    assert (zoomed.x[0], zoomed.x[-1]) == (-0.5, 0.5)
    assert max(zoomed.y) == pytest.approx(max(line.y), rel=1e-2)  # most are near zero


def test_parts_add_up_and_traces_agree(networks: Networks) -> None:
    risk = networks.risk(0)
    parts = whole.gradient_parts(ClassGradients(risk))
    total = sum(parts[name].to_dense() for name in ("class", "cross", "within", "same"))
    G = GaussNewton(risk).to_dense()
    torch.testing.assert_close(total, G)
    assert whole.total_trace(risk) == pytest.approx(float(G.trace()))


def test_own_networks_have_a_held_out_risk_where_test_data_are_given(empty_shop: Workshop) -> None:
    x = torch.randn(14, 3, generator=torch.Generator().manual_seed(0))
    train, test = (DataSet("toy", part, (part[:, 0] > 0).long(), 2) for part in (x[:9], x[9:]))
    own = Own(lambda seed: nn.Linear(3, 2), train)
    cast = Cast("mine", "toy", Recipe(1, 9, SGD(0.1)), own=own)
    assert whole.held_out_risk(empty_shop, empty_shop.networks(cast), 0) is None
    tested = dataclasses.replace(cast, own=dataclasses.replace(own, test=test))
    networks = empty_shop.networks(tested)
    risk = whole.held_out_risk(empty_shop, networks, 0)
    assert risk is not None
    loss = nn.functional.cross_entropy(networks.model(0)(test.inputs), test.targets)
    assert float(risk.value()) == pytest.approx(float(loss.detach()))
    assert float(risk.value()) != pytest.approx(float(networks.risk(0).value()))


def test_risks_of_some_samples(tiny: Networks, shop: Workshop) -> None:
    seen, held_out = whole.seen_risk(tiny, 0, 30), whole.held_out_risk(shop, tiny, 0, 20)
    assert held_out is not None
    test = tiny.cast.load(split="test")
    for risk, data, n in ((seen, tiny.data, 30), (held_out, test, 20)):
        assert risk.num_samples == n
        some = data.take(n, seed=0)
        found = tiny.model(0)(some.inputs.double())
        loss = torch.nn.functional.cross_entropy(found, some.targets)
        assert float(risk.value()) == pytest.approx(float(loss.detach()))
    assert whole.seen_risk(tiny, 0).num_samples == whole.seen_risk(tiny, 0, 10**6).num_samples
