"""Clusters of logit gradients against Jacobians written out sample by sample."""

import builtins

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from eigenscape.curvature import LayerHessian, OutputHessian
from eigenscape.errors import DataError, InvalidArgumentError, TooLargeError, UnsupportedModelError
from eigenscape.records import pack, unpack
from eigenscape.risk import CrossEntropy, EmpiricalRisk, SquaredError
from eigenscape_papers.wu import logit_gradients
from tests.curvature.classes.test_moments import LAYOUTS, OTHER_ROWS, Bag, Mixing, bag_risk

LABELS = torch.tensor([0, 1, 2, 3, 0, 1, 2, 0, 1, 0, 3])  # no two classes alike, 4 is empty


def dense_net():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3, bias=False), nn.ReLU(),
                          nn.Linear(3, 5)).double()  # fmt: skip
    return model, torch.randn(11, 4, dtype=torch.float64)


def conv_net():
    torch.manual_seed(2)
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 5)).double()
    return model, torch.randn(11, 2, 4, 3, dtype=torch.float64)


def made(model, x, loss=None, **options):
    return EmpiricalRisk(model, loss or CrossEntropy(), (x, LABELS), **options)


def by_hand(model, x, index, variable):
    """δ (N, c, d): Q (28) times the Jacobian, for one sample after the other."""
    rows = []
    for sample in x:
        h = model[:index](sample[None]).detach()
        z = model[index](h)
        where = list(model[index].parameters()) if variable == "parameters" else [z]
        out = model[index + 1 :](z)[0]
        J = torch.stack(
            [
                torch.cat([g.flatten() for g in torch.autograd.grad(o, where, retain_graph=True)])
                for o in out
            ]
        )
        p = out.detach().softmax(0)
        Q = torch.diag(p.sqrt()) @ (torch.eye(5, dtype=torch.float64) - p.expand(5, 5))
        torch.testing.assert_close(Q.T @ Q, torch.diag(p) - torch.outer(p, p))
        rows.append(Q @ J)
    return torch.stack(rows)


def shares(vectors, labels, logits):
    """Variance between groups over all variance, with every vector given."""
    total = (vectors - vectors.mean(0)).square().sum()
    found = []
    for groups in (logits, labels):
        centres = torch.stack([vectors[groups == g].mean(0) for g in groups])
        found.append(float((centres - vectors.mean(0)).square().sum() / total))
    return found


CASES = [(dense_net, "0", 0), (dense_net, "2", 2), (dense_net, "4", 4), (conv_net, "0", 0)]


@pytest.mark.parametrize("variable", ["parameters", "output"])
@pytest.mark.parametrize(("build", "layer", "index"), CASES)
def test_shares_are_those_of_single_gradients(build, layer, index, variable) -> None:
    model, x = build()
    found = logit_gradients(made(model, x, batch_size=4), layer, variable=variable, tsne=False)
    delta = by_hand(model, x, index, variable)
    means = torch.stack([delta[i == LABELS].mean(0) for i in range(4)])
    logits = torch.arange(5)
    expected = shares(means.flatten(0, 1), torch.arange(4).repeat_interleave(5), logits.repeat(4))
    torch.testing.assert_close([found.logit_share, found.class_share], expected)
    expected = shares(delta.flatten(0, 1), LABELS.repeat_interleave(5), logits.repeat(11))
    torch.testing.assert_close([found.sample_logit_share, found.sample_class_share], expected)
    second = float(delta.square().sum() / 11)
    torch.testing.assert_close(found.second_moment, second)
    kept = float((means[LABELS]).square().sum() / 11 / second)
    torch.testing.assert_close(found.mean_share, kept)
    assert found.classes.tolist() == [0, 1, 2, 3]
    assert found.num_dimensions == delta.shape[2]
    assert found.coordinates is None
    assert 0 < found.logit_share + found.class_share <= 1


def test_squares_of_single_gradients_add_up_to_the_hessians() -> None:
    model, x = dense_net()
    risk = made(model, x)
    delta = by_hand(model, x, 0, "parameters").flatten(0, 1)
    torch.testing.assert_close(delta.T @ delta / 11, LayerHessian(risk, "0").to_dense())
    gamma = by_hand(model, x, 0, "output").flatten(0, 1)
    torch.testing.assert_close(gamma.T @ gamma / 11, OutputHessian(risk, "0").matrix)


def test_centres_of_a_linear_tail_at_equal_logits_are_the_approximated_ones() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 5)).double()
    with torch.no_grad():
        model[0].weight.zero_()  # all samples have the same logits, and the same G = W
    x = torch.randn(11, 4, dtype=torch.float64)
    ones = torch.ones(5, dtype=torch.float64)
    found = logit_gradients(made(model, x), "0", variable="output", tsne=False)
    torch.testing.assert_close(found.center_cosines, ones)
    torch.testing.assert_close(found.logit_share, 1.0)
    # Means over classes of unequal size are not the mean over samples; equal inputs are.
    found = logit_gradients(made(model, x[:1].expand(11, 4)), "0", tsne=False)
    torch.testing.assert_close(found.center_cosines, ones)


def test_centres_are_compared_with_the_formula() -> None:
    model, x = dense_net()
    found = logit_gradients(made(model, x), "0.weight", tsne=False)
    p = model(x).detach().softmax(1)
    Q = p.sqrt()[:, :, None] * (torch.eye(5, dtype=torch.float64) - p[:, None, :])
    S = (model[4].weight @ model[2].weight).detach()
    guess = torch.stack([torch.kron(row, x.mean(0)) for row in Q.mean(0) @ S])
    delta = by_hand(model, x, 0, "parameters")[:, :, :24]
    centre = torch.stack([delta[i == LABELS].mean(0) for i in range(4)]).mean(0)
    torch.testing.assert_close(found.center_cosines, F.cosine_similarity(centre, guess, dim=1))
    assert logit_gradients(made(*conv_net()), "0", tsne=False).center_cosines is None


def test_ignored_samples_do_not_count() -> None:
    model, x = dense_net()
    some = logit_gradients(
        EmpiricalRisk(model, CrossEntropy(), (x, LABELS.where(LABELS != 2, torch.tensor(-100)))),
        "0",
        tsne=False,
    )
    kept = LABELS != 2
    rest = EmpiricalRisk(model, CrossEntropy(), (x[kept], LABELS[kept]))
    fewer = logit_gradients(rest, "0", tsne=False)
    assert some.classes.tolist() == [0, 1, 3]
    torch.testing.assert_close(some.logit_share, fewer.logit_share)
    torch.testing.assert_close(some.second_moment, fewer.second_moment)


def test_coordinates_are_fixed_by_the_seed_and_show_the_clusters() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 5)).double()
    with torch.no_grad():
        model[0].weight.mul_(1e-3)
    risk = made(model, torch.randn(11, 4, dtype=torch.float64))
    first, second = (logit_gradients(risk, "0", variable="output", seed=3) for _ in range(2))
    assert torch.equal(first.coordinates, second.coordinates)
    assert first.coordinates.shape == (4 * 5 + 5 + 4, 2)
    assert first.logit_share > 0.99
    assert bool(torch.isfinite(first.coordinates).all())
    # Points of one logit lie closer to their centre than to any other logit's.
    points, centres = first.coordinates[:20], first.coordinates[20:25]
    assert torch.cdist(points, centres).argmin(1).tolist() == list(range(5)) * 4
    table = first.columns()
    assert list(table["class"])[18:] == [3, 3, *[None] * 5, 0, 1, 2, 3]
    assert list(table["logit"])[18:] == [3, 4, 0, 1, 2, 3, 4, *[None] * 4]
    assert unpack(*pack(first)).logit_share == first.logit_share


def test_points_that_coincide_have_coordinates_too() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 5)).double()
    with torch.no_grad():
        model[1].weight.zero_()
    found = logit_gradients(made(model, torch.randn(11, 4, dtype=torch.float64)), "0")
    assert bool(torch.isfinite(found.coordinates).all())
    assert (found.logit_share, found.class_share, found.mean_share) == (0.0, 0.0, 0.0)


def test_what_does_not_fit_is_refused(monkeypatch) -> None:
    model, x = dense_net()
    risk = made(model, x)
    with pytest.raises(InvalidArgumentError, match="variable="):
        logit_gradients(risk, "0", variable="weights")
    with pytest.raises(TooLargeError, match="max_bytes"):
        logit_gradients(risk, "0", max_bytes=5 * 5 * 30 * 8 - 1)
    weighted = made(model, x, CrossEntropy(torch.ones(5)))
    with pytest.raises(UnsupportedModelError, match="with weights"):
        logit_gradients(weighted, "0")
    squared = EmpiricalRisk(model, SquaredError(), (x, torch.zeros(11, 5, dtype=torch.float64)))
    with pytest.raises(UnsupportedModelError, match="is SquaredError"):
        logit_gradients(squared, "0")
    soft = EmpiricalRisk(model, CrossEntropy(), (x, torch.full((11, 5), 0.2).double()))
    with pytest.raises(UnsupportedModelError, match="class indices"):
        logit_gradients(soft, "0")
    known = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("sklearn"):
            raise ImportError(name)
        return known(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DataError, match="tsne=False"):
        logit_gradients(risk, "0")


@pytest.mark.parametrize(("layout", "positions"), LAYOUTS)
def test_rows_that_are_not_samples_are_refused(layout, positions) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"{OTHER_ROWS}.*another layer"):
        logit_gradients(bag_risk(Bag(layout), positions), "fc", tsne=False)
    assert logit_gradients(bag_risk(Bag(), positions), "fc", tsne=False).second_moment > 0


@pytest.mark.parametrize("sizes", [(6,), (1, 5)])
def test_samples_that_mix_are_refused(sizes) -> None:
    with pytest.raises(UnsupportedModelError, match="samples change each other's outputs"):
        logit_gradients(bag_risk(Mixing(), 5, sizes), "fc", tsne=False)
