import dataclasses
import shutil
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from eigenscape.errors import ConvergenceWarning
from eigenscape.operator import Dense
from eigenscape.records import Progress
from eigenscape_papers.papyan import SpectraLook, paper_density
from eigenscape_papers.papyan import networks as papyan_casts
from eigenscape_papers.papyan import whole_spectra as _whole_spectra
from eigenscape_papers.papyan.spectra_study import _interlaced
from eigenscape_papers.papyan.whole_spectra import LONG_STEPS, NUM_STEPS, Spectrum, take_spectrum
from eigenscape_papers.runner import Networks, Setting, StudyResult, Workshop, run_study
from eigenscape_papers.studies import STUDIES
from papers.tests.conftest import TINY, numbers_of

NAME = "papyan-spectra"
# 64 inputs, 4 units, 10 classes: 330 parameters, so that a dense Hessian takes a second.
NARROW = dataclasses.replace(TINY, model="F-4^2", keep_epochs=())


@pytest.fixture(scope="module")
def result(shop: Workshop) -> StudyResult:
    study = dataclasses.replace(
        STUDIES[NAME], settings={"laptop": Setting((NARROW,), {"samples": None})}
    )
    return run_study(study, shop)


@pytest.fixture(scope="module")
def networks(shop: Workshop) -> Networks:
    return shop.networks(NARROW)


def hessian(networks: Networks, seed: int, split: str) -> torch.Tensor:
    """The Hessian on one of the splits, by double backward."""
    data = networks.cast.load(split=split)
    model = networks.model(seed)
    loss = cross_entropy(model(data.inputs.double()), data.targets)
    chosen = list(model.parameters())
    slopes = torch.autograd.grad(loss, chosen, create_graph=True)
    rows = [
        torch.cat([p.reshape(-1) for p in torch.autograd.grad(g, chosen, retain_graph=True)])
        for slope in slopes
        for g in slope.reshape(-1)
    ]
    H = torch.stack(rows)
    return (H + H.T) / 2


def eigenvalues(networks: Networks, seed: int, split: str) -> torch.Tensor:
    """All eigenvalues of the Hessian, descending."""
    return torch.linalg.eigvalsh(hessian(networks, seed, split)).flip(0)


def test_the_numbers_of_the_hessian(result: StudyResult, networks: Networks) -> None:
    ours = numbers_of(result)
    train, test = ([eigenvalues(networks, s, split) for s in (0, 1)] for split in ("train", "test"))
    negative = [float(-v[-1] / v[0]) for v in train]
    assert ours["papyan.fig3.negative"] == pytest.approx(sum(negative) / 2, rel=1e-8)
    small = [float((v.abs() < 0.01 * v[0]).double().mean()) for v in train]
    assert ours["papyan.fig3.concentration"] == pytest.approx(sum(small) / 2)
    ratios = [float(b[0] / a[0]) for a, b in zip(train, test, strict=True)]
    assert ours["papyan.fig3.test-magnitude"] == pytest.approx(sum(ratios) / 2, rel=1e-8)
    near = []
    for v in (*train, *test):
        place = int((v[1:20] / v[2:21].clamp_min(1e-300)).argmax()) + 2
        near.append(place in (9, 10))
    assert ours["papyan.fig3.outliers"] == sum(near) / 4


def test_the_table_has_all_matrices(result: StudyResult, networks: Networks) -> None:
    table = result.sheets[0].columns
    assert table["matrix"] == ("H", "G", "E") * 4
    assert table["data"] == (("train",) * 3 + ("test",) * 3) * 2
    values = eigenvalues(networks, 0, "train")
    assert table["λ₁"][0] == pytest.approx(float(values[0]), rel=1e-5)
    assert table["λ_C"][0] == pytest.approx(float(values[9]), rel=1e-5)
    assert table["mean |λ| of the bulk"][0] == pytest.approx(
        float(values[10:].abs().mean()), rel=1e-5
    )
    assert min(table["λ_min"][1::3]) > -1e-12  # G has no negative eigenvalues


def test_every_figure_is_drawn(result: StudyResult) -> None:
    pictures = {picture.name.partition("-")[0]: picture for picture in result.pictures()}
    assert list(pictures) == ["fig3", "fig4a", "fig4b", "fig14", "fig17"]
    bulks = pictures["fig4b"].panels
    assert [[mark.label for mark in panel.marks] for panel in bulks] == [["H", "G", "E"]] * 2
    bare = pictures["fig14"].panels[0].marks[0]
    assert len(bare.x) == 1024  # nothing is deflated: the axis reaches λ₁
    assert bare.x[-1] > result.sheets[0].columns["λ₁"][0]


def test_every_claim_is_measured(result: StudyResult) -> None:
    assert numbers_of(result).keys() == {claim.id for claim in STUDIES[NAME].claims}


def test_settings_of_the_paper() -> None:
    A = Dense(torch.diag(torch.linspace(-1.0, 3.0, 60)))
    found = paper_density(A, 20)
    assert (len(found.grid), found.nodes.shape) == (1024, (1, 20))
    low, high = found.edges
    half = 0.5 * (high - low) * 1.1  # a margin of 0.05 of the range at either end
    assert found.sigma == pytest.approx(half * 2 / (19 * (8 * torch.tensor(3.0).log()).sqrt()))


def test_networks_of_other_figures_are_not_deflated(
    result: StudyResult, shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(papyan_casts, "VGG", (NARROW,))
    found = STUDIES[NAME].measure(Setting((NARROW,), {"samples": None}), shop)
    fig17 = {"papyan.fig17.aligned", "papyan.fig17.resolution"}
    ours = {id: each.ours for id, each in found.measured.items()}
    assert ours == {id: n for id, n in numbers_of(result).items() if id not in fig17}
    assert [picture.name for picture in found.pictures] == [
        picture.name for picture in result.pictures() if picture.name != "fig17"
    ]


def test_the_network_of_fig_17_alone_is_only_deflated(
    result: StudyResult, shop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(papyan_casts, "RESNET_FEW", NARROW)
    kept = dataclasses.replace(shop, parts=tmp_path)
    for _ in range(2):  # measured, and read again
        found = STUDIES[NAME].measure(Setting((NARROW,), {"samples": None}), kept)
        ours = {id: each.ours for id, each in found.measured.items()}
        assert ours == {id: n for id, n in numbers_of(result).items() if "fig17" in id}
        assert [picture.name for picture in found.pictures] == ["fig17"]
        assert found.pictures[0] == result.pictures()[-1]
        assert (found.sheets, found.num_products > 0) == ((), True)


def test_sessions_add_up(empty_shop: Workshop, tmp_path: Path) -> None:
    """What is measured in one and what in the next, when the networks of the first are gone."""
    first, second = (
        dataclasses.replace(NARROW, model=model, seeds=(0,)) for model in ("F-3^2", "F-4^2")
    )
    shop = dataclasses.replace(empty_shop, parts=tmp_path)
    alone = STUDIES[NAME].measure(Setting((first,), {"samples": None}), shop)
    shutil.rmtree(shop.folder / "networks")
    shop = dataclasses.replace(Workshop(shop.folder, shop.device), parts=tmp_path)
    both = STUDIES[NAME].measure(Setting((first, second), {"samples": None}), shop)
    assert [path.name for path in (shop.folder / "networks").iterdir()] == [second.key]
    mine, ours = (found.sheets[0].columns for found in (alone, both))
    assert ours["network"] == (first.label,) * 6 + (second.label,) * 6
    assert all(column[:6] == mine[name] for name, column in ours.items())
    assert both.num_products > alone.num_products


@pytest.mark.parametrize(
    ("H", "G", "share"),
    [
        ([9.0, 7.0, 5.0, 3.0, 2.0], [8.0, 6.0, 4.0, 2.5, 0.0], 1.0),
        ([8.0, 6.0, 4.0, 2.5, 0.0], [9.0, 7.0, 5.0, 3.0, 2.0], 1.0),  # the other way round
        ([9.0, 7.0, 5.0, 3.0, 2.0], [8.0, 7.5, 4.0, 2.5, 0.0], 2 / 3),  # the second is too large
        ([9.0, 7.0, 5.0, 3.0, 2.0], [6.0, 5.5, 4.0, 2.5, 0.0], 2 / 3),  # the first is too small
        ([9.0, 7.0, 5.0, 3.0, 2.0], [8.0, 7.5, 4.0, 3.5, 0.0], 2 / 3),  # the fourth is beyond C
    ],
)
def test_interlacing_has_two_sides(H: list[float], G: list[float], share: float) -> None:
    spectra = {
        name: Spectrum(torch.tensor(top), torch.zeros(1), torch.ones(1), 0.0, 6, 0)
        for name, top in (("H", H), ("G", G))
    }
    look = SpectraLook("x", 0, "test", spectra, 4, None)
    assert _interlaced(look) == pytest.approx(share)


def test_long_vectors_cost_no_more_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pairs do not converge, a GPU would spend minutes on each matrix."""
    A = Dense(torch.diag(torch.linspace(0.0, 1.0, 2000))) * 1.0  # by products; no gap anywhere
    free = take_spectrum(A, 30)
    assert free.num_products - 4 * NUM_STEPS > 400
    monkeypatch.setattr(_whole_spectra, "LONG", 2000)
    with pytest.warns(ConvergenceWarning, match="Not converged"):
        found = take_spectrum(A, 30)
    assert 300 < found.num_products - LONG_STEPS <= 400
    many = take_spectrum(A, 210)  # and their certificates are more than 400
    assert len(many.top) == 210


def test_progress_of_products_is_told() -> None:
    steps: list[Progress] = []
    A = Dense(torch.diag(torch.linspace(-1.0, 3.0, 400))) * 1.0
    take_spectrum(A, 3, progress=steps.append)
    assert {step.task for step in steps} == {"eigsh", "spectral density"}
