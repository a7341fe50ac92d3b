import pytest
import torch

from eigenscape.errors import InvalidArgumentError, NonFiniteError, ShapeError, WrongTypeError
from eigenscape_papers.representations import (
    anchor_table,
    embedding_diagnostics,
    fit_anchors,
    log_bulk_partitions,
)


def test_one_anchor_is_least_squares_without_intercept() -> None:
    v, t = torch.randn(30, 4), torch.randn(30) + 5
    fit = fit_anchors(v, t)
    best = torch.linalg.lstsq(v, t.unsqueeze(1)).solution.squeeze(1)
    torch.testing.assert_close(fit.anchors[0], best)
    errors = v @ best - t
    assert fit.mse == pytest.approx(errors.square().mean().item())
    assert fit.max_error == pytest.approx(errors.abs().max().item())
    assert fit.variance == pytest.approx(t.var(correction=0).item())


def test_two_clusters_need_two_anchors() -> None:
    v = torch.cat([torch.randn(200, 3), torch.ones(200, 1)], dim=1)
    anchors = torch.tensor([[1.0, 0.5, -1.0, 40.0], [-0.5, 1.0, 0.3, -10.0]])
    cluster = torch.arange(200) % 3 // 2  # unequal parts
    t = (v * anchors[cluster]).sum(1) + 0.01 * torch.randn(200)
    one, two = fit_anchors(v, t), fit_anchors(v, t, num_anchors=2)
    assert one.mse > 100
    assert two.mse < 2e-4
    order = two.anchors[:, 3].argsort(descending=True)
    torch.testing.assert_close(two.anchors[order], anchors, atol=0.01, rtol=0)
    assert torch.equal(order.argsort()[two.assignment], cluster)
    assert two.status


def test_ridge_takes_singular_states() -> None:
    v = torch.randn(30, 3)
    flat, t = torch.cat([v, v[:, :1]], dim=1), v @ torch.tensor([1.0, 2.0, 3.0])
    with pytest.raises(InvalidArgumentError, match="span fewer than their 4 dimensions"):
        fit_anchors(flat, t)
    assert fit_anchors(flat, t, ridge=1e-9).mse < 1e-12


@pytest.mark.parametrize("ridge", [1e-9, 1e-3, 1.0])
def test_ridge_is_least_squares_with_rows_for_the_penalty(ridge: float) -> None:
    v, t = torch.randn(30, 4), torch.randn(30)
    penalty = (ridge * v.square().mean() * 30).sqrt() * torch.eye(4)
    rows, wanted = torch.cat([v, penalty]), torch.cat([t, torch.zeros(4)])
    best = torch.linalg.lstsq(rows, wanted.unsqueeze(1)).solution.squeeze(1)
    torch.testing.assert_close(fit_anchors(v, t, ridge=ridge).anchors[0], best)


@pytest.mark.parametrize("ridge", [1e-6, 1e-300])
def test_ridge_takes_the_shortest_of_equals(ridge: float) -> None:
    t = torch.arange(9.0)
    nothing = fit_anchors(torch.zeros(9, 2), t, ridge=ridge)
    assert nothing.anchors.tolist() == [[0.0, 0.0]]
    assert nothing.mse == pytest.approx(float(t.square().mean()))
    both = fit_anchors(torch.ones(9, 2), t, ridge=ridge).anchors  # their sum is the mean, 4
    torch.testing.assert_close(both, torch.tensor([[2.0, 2.0]]), atol=1e-5, rtol=0)
    some = torch.cat([torch.zeros(9, 2), torch.randn(9, 2)])  # of two anchors, one sees zeros
    assert fit_anchors(some, t.repeat(2), num_anchors=2, ridge=ridge).anchors.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_exact_anchor_is_exact_in_half_precision(dtype: torch.dtype) -> None:
    v = torch.cat([torch.randn(60, 15), torch.ones(60, 1)], dim=1).to(dtype)
    table = anchor_table(v, torch.randn(16).to(dtype).repeat(8, 1), num_top=(0, 4))
    assert max(table.mse) < 1e-10  # products of float32: a few 1e-6 each


def test_table_is_a_fit_of_each_bulk() -> None:
    v, words = torch.randn(40, 3), torch.randn(9, 3)
    table = anchor_table(v, words, num_top=(0, 2, 100))
    assert table.num_top == (0, 2)  # no more words than there are
    targets = log_bulk_partitions(v, words, (0, 2))
    for i in range(2):
        fit = fit_anchors(v, targets[:, i])
        assert table.mse[i] == pytest.approx(fit.mse)
        assert table.mean[i] == pytest.approx(targets[:, i].mean().item())
        assert table.variance[i] == pytest.approx(targets[:, i].var(correction=0).item())
        torch.testing.assert_close(table.anchors[i], fit.anchors)
    assert "left out" in str(table)


def test_diagnostics() -> None:
    words = torch.randn(12, 4) + 3.0
    found = embedding_diagnostics(words, num_pairs=5000)
    torch.testing.assert_close(found.singular_values, torch.linalg.svdvals(words))
    torch.testing.assert_close(found.norms, words.norm(dim=1))
    unit = words / words.norm(dim=1, keepdim=True)
    off = (unit @ unit.T).masked_select(~torch.eye(12, dtype=torch.bool))
    assert found.mean_cosine == pytest.approx(off.mean().item(), abs=0.02)
    assert found.cosines.max() < 1 - 1e-9  # never a word with itself
    assert 1 < found.effective_rank < 2  # a cone
    flat = embedding_diagnostics(torch.eye(5))
    assert flat.effective_rank == pytest.approx(5.0)


def test_refusals() -> None:
    v, t = torch.randn(9, 3), torch.randn(9)
    with pytest.raises(InvalidArgumentError, match="fitted exactly"):
        fit_anchors(v[:3], t[:3])
    with pytest.raises(InvalidArgumentError, match="9 contexts for 3 anchors"):
        fit_anchors(v, t, num_anchors=3)
    with pytest.raises(ShapeError, match="one length; got 9 and 8"):
        fit_anchors(v, t[:8])
    with pytest.raises(NonFiniteError, match="targets"):
        fit_anchors(v, t / 0.0)
    with pytest.raises(InvalidArgumentError, match="ridge"):
        fit_anchors(v, t, ridge=-1.0)
    with pytest.raises(InvalidArgumentError, match="vocabulary, 5"):
        anchor_table(v, torch.randn(5, 3), num_top=(5,))
    with pytest.raises(ShapeError, match="4 columns"):
        anchor_table(v, torch.randn(5, 4))
    with pytest.raises(InvalidArgumentError, match="at least 2"):
        embedding_diagnostics(v[:1])
    with pytest.raises(InvalidArgumentError, match="zero in all 4 words"):
        embedding_diagnostics(torch.zeros(4, 3))
    with pytest.raises(
        WrongTypeError, match=r"`fit_anchors\(targets\)` must be a tensor; got list"
    ):
        fit_anchors(v, t.tolist())
    with pytest.raises(ShapeError, match=r"floating-point vector.*\(9, 1\)"):
        fit_anchors(v, t[:, None])
    hint = r"\(5, 3\).*`log_bulk_partitions\(states, embedding, \(k,\)\)\[:, 0\]`"
    with pytest.raises(ShapeError, match=hint):
        fit_anchors(v, torch.randn(5, 3))
    positions = v.view(3, 3, 3)
    for call, second in ((fit_anchors, t), (anchor_table, v)):
        name = call.__name__
        with pytest.raises(ShapeError, match=rf"`{name}\(st.*\(3, 3, 3\).*`.flatten\(0, 1\)`"):
            call(positions, second)
    with pytest.raises(WrongTypeError, match=r"`anchor_table\(num_top=...\)`.*got.* 2. Pass `\(2,"):
        anchor_table(v, v, num_top=2)
    for call, given in (
        (fit_anchors, (v, t)),
        (anchor_table, (v, v)),
        (embedding_diagnostics, (v,)),
    ):
        with pytest.raises(WrongTypeError, match=rf"`{call.__name__}\(seed=...\)`"):
            call(*given, seed=1.5)
    with pytest.raises(InvalidArgumentError, match=r"`anchor_table\(num_anchors=...\)`"):
        anchor_table(v, v, num_anchors=0)
