import dataclasses
import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from eigenscape.curvature import ClassGradients, GaussNewton
from eigenscape.records import Progress
from eigenscape_papers.papyan import bulk_share
from eigenscape_papers.papyan.attribution_study import _look
from eigenscape_papers.papyan.whole_spectra import held_out_risk
from eigenscape_papers.runner import Networks, Setting, StudyResult, Workshop, run_study
from eigenscape_papers.studies import STUDIES
from papers.tests.conftest import numbers_of
from papers.tests.papyan.test_spectra_study import NARROW, hessian

NAME = "papyan-attribution"
C = 10


@pytest.fixture(scope="module")
def result(shop: Workshop) -> StudyResult:
    setting = Setting((NARROW,), {"max_bytes": 2**30, "num_draws": 0, "samples": None})
    study = dataclasses.replace(STUDIES[NAME], settings={"laptop": setting})
    return run_study(study, shop)


@pytest.fixture(scope="module")
def networks(shop: Workshop) -> Networks:
    return shop.networks(NARROW)


def parts(networks: Networks, seed: int) -> dict[str, Tensor]:
    """G and its parts from gradients of every sample with every label."""
    model, data = networks.model(seed), networks.data
    chosen = list(model.parameters())
    N = data.num_samples
    logs = model(data.inputs).log_softmax(1)
    cells: dict[tuple[int, int], list[tuple[float, Tensor]]] = {}
    for i in range(N):
        for label in range(C):
            g = torch.autograd.grad(-logs[i, label], chosen, retain_graph=True)
            w = float(logs[i, label].detach().exp()) / N
            flat = torch.cat([part.reshape(-1) for part in g])
            cells.setdefault((int(data.targets[i]), label), []).append((w, flat))
    n = sum(p.numel() for p in chosen)
    found = {name: torch.zeros(n, n) for name in ("G", "class", "cross", "same", "global")}
    weights = {key: sum(w for w, _ in cell) for key, cell in cells.items()}
    means = {key: sum(w * g for w, g in cell) / weights[key] for key, cell in cells.items()}
    for cell in cells.values():
        rows = torch.stack([w**0.5 * g for w, g in cell])
        found["G"] += rows.T @ rows
    total, centre = 0.0, torch.zeros(n)
    for c in sorted({key[0] for key in cells}):
        others = [label for label in range(C) if label != c]
        w_c = sum(weights[c, label] for label in others)
        g_c = sum(weights[c, label] * means[c, label] for label in others) / w_c
        found["class"] += w_c * torch.outer(g_c, g_c)
        found["same"] += weights[c, c] * torch.outer(means[c, c], means[c, c])
        for label in others:
            z = means[c, label] - g_c
            found["cross"] += weights[c, label] * torch.outer(z, z)
        total, centre = total + w_c, centre + w_c * g_c
    found["global"] = torch.outer(centre, centre) / total
    return found


def gone(A: Tensor, B: Tensor, k: int) -> float:
    """Share of what the first k eigenvalues have above the next that goes with B."""
    before, after = (torch.linalg.eigvalsh(M).flip(0) for M in (A, A - B))
    edge = before[k]
    left = (after[:k] - edge).clamp_min(0).sum() / (before[:k] - edge).sum()
    return float((1 - left).clamp(0, 1))


def test_shares_are_those_of_dense_matrices(result: StudyResult, networks: Networks) -> None:
    ours = numbers_of(result)
    expected: dict[str, list[float]] = {}
    for seed in (0, 1):
        H, P = hessian(networks, seed, "train"), parts(networks, seed)
        G = P["G"]
        values = {name: torch.linalg.eigvalsh(M).flip(0) for name, M in (("H", H), ("G", G))}
        away = len(H) // 4  # less than C²
        bulk = [float(values[name][away:].abs().mean()) for name in "GH"]
        without = torch.linalg.eigvalsh(G - P["same"]).flip(0)
        change = ((values["G"] - without).abs() / values["G"].clamp_min(1e-300))[: C * C]
        for id, value in {
            "table1.hessian.outliers": gone(H, G, C),
            "table1.hessian.bulk": 1 - bulk[0] / bulk[1],
            "table1.gradients.outliers": gone(G, P["class"], C),
            "table1.gradients.mini-bulk": gone(G - P["class"], P["cross"], C * (C - 2)),
            "table1.gradients.same": float(change.max()),
            "table1.gradients.bulk": means_outside(P),
            "s1-11.top-outlier": gone(G, P["global"], 1),
        }.items():
            expected.setdefault(f"papyan.{id}", []).append(value)
    for id, found in expected.items():
        assert ours[id] == pytest.approx(sum(found) / 2, rel=1e-5, abs=1e-8), id


def means_outside(P: dict[str, Tensor]) -> float:
    """What G has beyond its C² leading eigenvectors, less what the means have there, as a share."""
    V = torch.linalg.eigh(P["G"]).eigenvectors[:, : -C * C]
    means = P["class"] + P["cross"] + P["same"]
    left, bulk = (float(torch.trace(V.T @ M @ V)) for M in (means, P["G"]))
    return 1 - left / bulk


def test_the_bulk_is_not_that_of_a_random_matrix(result: StudyResult, networks: Networks) -> None:
    """Neither one that has the eigenvalues of G_within nor one that has its size in the bulk."""
    P = parts(networks, 0)
    G, n = P["G"], len(P["G"])
    within = G - P["class"] - P["cross"] - P["same"]
    claim = next(c for c in STUDIES[NAME].claims if c.id == "papyan.table1.gradients.bulk")
    share = bulk_share(G, within, C * C)
    assert share == pytest.approx(means_outside(P))
    draw = torch.Generator().manual_seed(0)
    Q = torch.linalg.qr(torch.randn(n, n, generator=draw)).Q
    turned = Q @ within @ Q.T
    V = torch.linalg.eigh(G).eigenvectors[:, : -C * C]
    scaled = turned * float(torch.trace(V.T @ G @ V) / torch.trace(V.T @ turned @ V))
    for other in (turned, scaled, torch.zeros_like(G)):
        assert bulk_share(G, other, C * C) < min(claim.low, share) - 0.5
    assert bulk_share(G, G, C * C) == pytest.approx(1.0)
    assert math.isnan(bulk_share(torch.diag(torch.arange(n) < 5).double(), within, C * C))


# Products find eigenvalues to the square of the tolerance 1e-3, and means of bulks by four probes,
# which leave 0.012 here.
_BY_PROBES = {"papyan.table1.hessian.bulk", "papyan.table1.hessian.test-bulk"}


@pytest.mark.parametrize(("rows", "missing"), [(0, {"papyan.fig5.bulks"}), (10**6, set[str]())])
def test_large_networks_are_taken_apart_by_products_or_in_the_span_of_their_gradients(
    result: StudyResult,
    shop: Workshop,
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
    missing: set[str],
) -> None:
    monkeypatch.setattr("eigenscape_papers.papyan.whole_spectra.DENSE", 10)
    monkeypatch.setattr("eigenscape_papers.papyan.whole_spectra._MOST_ROWS", {"cpu": rows})
    setting = Setting((NARROW,), {"max_bytes": 2**30, "num_draws": 0, "samples": None})
    study = dataclasses.replace(STUDIES[NAME], settings={"laptop": setting})
    ours, exact = numbers_of(run_study(study, shop)), numbers_of(result)
    assert exact.keys() - ours.keys() == missing
    for id in ours:
        assert ours[id] == pytest.approx(exact[id], abs=0.03 if id in _BY_PROBES else 1e-5), id


def test_the_bulk_on_test_data(result: StudyResult, networks: Networks, shop: Workshop) -> None:
    shares = []
    for seed in (0, 1):
        H = hessian(networks, seed, "test")
        G = GaussNewton(held_out_risk(shop, networks, seed)).to_dense()
        G, H = (torch.linalg.eigvalsh(M).flip(0)[len(M) // 4 :].abs().mean() for M in (G, H))
        shares.append(float(1 - G / H))
    ours = numbers_of(result)["papyan.table1.hessian.test-bulk"]
    assert ours == pytest.approx(sum(shares) / 2, rel=1e-5)


def test_what_the_reasons_rest_on(result: StudyResult, networks: Networks) -> None:
    """Shares that no claim asks for: two parts together, G_within, a mean without weights."""
    table = result.sheets[0].columns
    rows = zip(table["seed"], table["cause and matrix"], table["mass subtracted"], strict=True)
    shares = {(seed, name): share for seed, name, share in rows}
    P = parts(networks, 0)
    G, rest = P["G"], P["G"] - P["class"]
    within = rest - P["cross"] - P["same"]
    assert shares[0, "class + cross in G"] == pytest.approx(
        gone(G, P["class"] + P["cross"], C), rel=1e-4
    )
    assert shares[0, "within in rest"] == pytest.approx(gone(rest, within, C * (C - 2)), rel=1e-4)
    gradients = ClassGradients(networks.risk(0))
    mean = sum(gradients.mean(row) for row in range(C)) / C
    weight = gradients.weights.sum() - gradients.weights.trace()
    plain = gone(G, weight * torch.outer(mean, mean), 1)
    assert shares[0, "plain mean in G"] == pytest.approx(plain, rel=1e-4, abs=1e-6)


def test_the_global_mean_is_a_gradient_of_the_loss(networks: Networks) -> None:
    """(Σ w_c) g_G = −(1/N) Σ p_{i,y} ∇ℓ_i, which is why it makes no outlier at a minimum."""
    gradients = ClassGradients(networks.risk(0))
    weight = gradients.weights.sum() - gradients.weights.trace()
    model, data = networks.model(0), networks.data
    losses = cross_entropy(model(data.inputs), data.targets, reduction="none")
    slopes = torch.autograd.grad((losses.detach().neg().exp() * losses).mean(), model.parameters())
    expected = -torch.cat([slope.reshape(-1) for slope in slopes])
    torch.testing.assert_close(weight * gradients.mean(), expected)


def test_every_claim_is_measured(result: StudyResult) -> None:
    assert numbers_of(result).keys() == {claim.id for claim in STUDIES[NAME].claims}


def test_what_the_knockout_of_the_same_class_is(networks: Networks) -> None:
    """G_{c=c'} is G_class with each term times w_c/w_{c,c}, so both have one span."""
    P = parts(networks, 0)
    span = torch.linalg.eigh(P["class"]).eigenvectors[:, -C:]
    rest = P["same"] - span @ (span.T @ P["same"])
    assert float(rest.norm()) < 1e-9 * float(P["same"].norm())


def test_stages_are_reported_one_by_one(networks: Networks, shop: Workshop) -> None:
    """So that a run whose time is over stops between them."""
    setting = Setting(options={"max_bytes": 2**30, "num_draws": 0, "samples": None})
    for seed, stages in ((0, 14), (1, 9)):  # spectra are drawn of the first
        steps: list[Progress] = []
        _look(networks, seed, setting, dataclasses.replace(shop, progress=steps.append))
        assert {step.task for step in steps} == {"knockouts, F-4^2 (digits)"}
        assert [(step.done, step.total) for step in steps] == [
            (done, stages) for done in range(1, stages + 1)
        ]


def test_spectra_of_large_networks_say_how_far_they_are(
    networks: Networks, shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their products take minutes, and a run whose time is over stops between them."""
    monkeypatch.setattr("eigenscape_papers.papyan.whole_spectra.DENSE", 10)
    steps: list[Progress] = []
    setting = Setting(options={"max_bytes": 2**30, "num_draws": 0, "samples": 60})
    _look(networks, 1, setting, dataclasses.replace(shop, progress=steps.append))
    assert {step.task for step in steps} >= {"eigsh", "spectral density"}
