import itertools
import math

import pytest
import torch

from eigenscape.errors import InvalidArgumentError, ShapeError, TooLargeError, WrongTypeError
from eigenscape_papers.representations import (
    best_sparse_losses,
    coherence,
    largest_chi_square_bound,
    masked_losses,
    masked_oracle_loss,
    net_dictionary,
    orthogonal_matching_pursuit,
    pursuit_guarantee,
    random_dictionary,
    recovery_error,
    sparse_samples,
)


def test_best_losses_are_the_best_of_all_supports() -> None:
    B, Y = random_dictionary(6, 5), torch.randn(4, 5)
    best = torch.full((4,), math.inf)
    for support in itertools.combinations(range(6), 2):
        atoms = B[list(support)].T
        rest = Y.T - atoms @ torch.linalg.lstsq(atoms, Y.T).solution
        best = torch.minimum(best, rest.square().sum(0))
    torch.testing.assert_close(best_sparse_losses(Y, B, sparsity=2), best)
    pursued = orthogonal_matching_pursuit(Y, B, sparsity=2)
    greedy = (Y - pursued.combine(B)).square().sum(1)
    assert (greedy >= best - 1e-12).all()


def test_best_losses_of_dependent_atoms() -> None:
    B = torch.tensor([[1.0, 0.0], [2.0, 0.0]])
    losses = best_sparse_losses(torch.tensor([[3.0, 4.0]]), B, sparsity=2)
    torch.testing.assert_close(losses, torch.tensor([16.0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_best_losses_count_no_rounding_as_a_dimension(dtype: torch.dtype) -> None:
    a, Y = torch.randn(7).to(dtype), torch.randn(4, 7).to(dtype)
    for B in (torch.stack([a, a / 3, 0.7 * a]), torch.stack([a, 0 * a, 0 * a])):
        along = Y.double() @ (a.double() / a.double().norm())
        rest = Y.double().square().sum(1) - along.square()
        losses = best_sparse_losses(Y, B, sparsity=2)
        assert losses.dtype == dtype
        torch.testing.assert_close(losses.double(), rest, rtol=1e-6, atol=0)  # float32 of atoms
    long = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1e-20, 0.0]], dtype=dtype)
    losses = best_sparse_losses(torch.tensor([[3.0, 4.0, 5.0]], dtype=dtype), long, sparsity=2)
    assert losses.tolist() == [25.0]  # short, but a dimension


def test_a_net_beats_the_truth() -> None:
    """Theorem 2.3.2 for k = 1: less loss than the truth, and no atom near it."""
    A, sigma = random_dictionary(8, 7), 0.1
    Y, _ = sparse_samples(A, 2000, sparsity=1, noise=sigma)
    net = net_dictionary(A, num_directions=24, clearance=sigma / 2)
    true, two, ours = (
        best_sparse_losses(Y, B, sparsity=k).mean().item() for B, k in ((A, 1), (A, 2), (net, 1))
    )
    assert two < ours < true - 0.5 * sigma**2
    assert recovery_error(A, net, metric="squared") >= 2 - 2 * math.cos(sigma / 2) - 1e-12


def test_net_lies_in_the_planes_and_clear_of_atoms() -> None:
    A = random_dictionary(3, 6)
    net = net_dictionary(A, num_directions=10, clearance=0.2)
    assert 0 < len(net) < 30  # some were too near
    torch.testing.assert_close(net.norm(dim=1), torch.ones(len(net)))
    assert (net @ A.T).abs().max() <= math.cos(0.2) + 1e-12
    torch.testing.assert_close(best_sparse_losses(net, A, sparsity=2), torch.zeros(len(net)))


def test_masked_losses_decode_from_what_is_seen() -> None:
    B, Y = random_dictionary(9, 7), torch.randn(5, 7)
    seen, hidden = torch.tensor([5, 0, 2, 3]), torch.tensor([1, 4, 6])
    codes = orthogonal_matching_pursuit(Y[:, seen], B[:, seen], sparsity=2)
    expected = (Y - codes.dense() @ B)[:, hidden].square().sum(1)
    torch.testing.assert_close(masked_losses(Y, B, seen, sparsity=2), expected)
    mask = torch.zeros(7, dtype=torch.bool).index_fill_(0, seen, True)
    torch.testing.assert_close(masked_losses(Y, B, mask, sparsity=2), expected)


def test_oracle_losses_are_those_of_simulated_oracles() -> None:
    A, sigma, scale = random_dictionary(5, 7), 0.7, 0.9
    seen, hidden = torch.arange(4), torch.arange(4, 7)
    Y, codes = sparse_samples(A, 60_000, sparsity=2, noise=sigma, scale=scale)
    known = torch.linalg.pinv(A[codes.support][..., seen].mT)
    least = (known @ Y[:, seen, None]).mT @ A[codes.support][..., hidden]
    loss = (Y[:, hidden] - least.squeeze(1)).square().sum(1)
    noise = 4 * loss.std().item() / math.sqrt(len(loss))
    oracle = masked_oracle_loss(A, seen, sparsity=2, noise=sigma)
    assert loss.mean().item() == pytest.approx(oracle, abs=noise)
    inner = A[codes.support][..., seen]
    ridge = inner @ inner.mT + (sigma / scale) ** 2 * torch.eye(2)
    guess = torch.linalg.solve(ridge, inner @ Y[:, seen, None]).mT @ A[codes.support][..., hidden]
    loss = (Y[:, hidden] - guess.squeeze(1)).square().sum(1)
    bayes = masked_oracle_loss(A, seen, sparsity=2, noise=sigma, scale=scale)
    assert loss.mean().item() == pytest.approx(bayes, abs=4 * loss.std().item() / math.sqrt(60_000))
    printed = masked_oracle_loss(A, seen, sparsity=2, noise=sigma, scale=scale * sigma)
    assert abs(printed - bayes) > 0.01  # 1/σ_z², as printed, is another number
    assert bayes < oracle


def test_given_supports_are_averaged_over() -> None:
    A = random_dictionary(5, 7)
    pairs = torch.tensor([[0, 3], [1, 2]])
    losses = [
        masked_oracle_loss(A, torch.arange(4), sparsity=2, noise=1.0, supports=pair[None])
        for pair in pairs
    ]
    both = masked_oracle_loss(A, torch.arange(4), sparsity=2, noise=1.0, supports=pairs)
    assert both == pytest.approx(sum(losses) / 2)


def test_masked_loss_of_the_truth_tends_to_the_oracles() -> None:
    """Theorem 2.3.6 in the setting of an independent computation: 3.25 to 2.62 against 2.60."""
    A, seen = random_dictionary(90, 60), torch.arange(50)
    supports = torch.rand(4000, 90).topk(2).indices
    oracle = masked_oracle_loss(A, seen, sparsity=2, noise=0.5, supports=supports)
    assert oracle == pytest.approx(2.60, abs=0.02)
    gaps = []
    for scale in (1.0, 10.0, 1000.0):
        Y, codes = sparse_samples(A, 20_000, sparsity=2, noise=0.5, scale=scale)
        loss = masked_losses(Y, A, seen, sparsity=2).mean().item()
        bayes = masked_oracle_loss(
            A, seen, sparsity=2, noise=0.5, scale=scale, supports=codes.support
        )
        assert loss > bayes - 0.03
        gaps.append(loss - oracle)
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[0] == pytest.approx(0.65, abs=0.1)
    assert abs(gaps[2]) < 0.05


def test_pursuit_chooses_what_it_promises_to() -> None:
    A = random_dictionary(40, 400)
    mu = coherence(A)
    size, chance = pursuit_guarantee(noise=0.1, sparsity=2, num_atoms=40, mu=mu, eta=0.5)
    assert chance == pytest.approx(1 - 1 / (math.sqrt(40) * math.sqrt(2 * math.log(40))))
    draw = torch.Generator().manual_seed(0)
    support = torch.rand(3000, 40, generator=draw).topk(2).indices
    signs = torch.randint(2, (3000, 2), generator=draw) * 2.0 - 1.0
    clean = (signs.unsqueeze(2) * A[support]).sum(1) * size
    Y = clean + 0.1 * torch.randn(3000, 400, generator=draw)
    chosen = orthogonal_matching_pursuit(Y, A, sparsity=2).support
    right = (chosen.sort(1).values == support.sort(1).values).all(1).double().mean()
    assert right >= chance


def test_coherence() -> None:
    A = random_dictionary(6, 5)
    by_hand = max(abs(float(A[i] @ A[j])) for i in range(6) for j in range(i))
    assert coherence(A) == pytest.approx(by_hand)
    part = A[:, [1, 3]]
    assert coherence(5 * A, torch.tensor([1, 3])) == pytest.approx(coherence(part))
    for scale in (1e-25, 1e25):
        two = torch.tensor([[scale, 0.0], [scale, scale]], dtype=torch.float32)
        assert coherence(two) == pytest.approx(math.sqrt(0.5), rel=1e-6)
    twice = torch.full((2, 3), 0.1, dtype=torch.bfloat16)
    assert coherence(twice) == pytest.approx(1.0, rel=1e-6)
    assert max(coherence(torch.randn(1, d).float().repeat(2, 1)) for d in range(2, 40)) <= 1.0


def test_largest_of_squared_gaussians() -> None:
    for count in (1, 10, 100):
        mean = torch.randn(4000, count).square().amax(1).mean().item()
        assert mean < largest_chi_square_bound(count)
    assert largest_chi_square_bound(10) == pytest.approx(3 * math.log(10) - 1.5 * math.log(1 / 3))


def test_refusals() -> None:
    A, Y, seen = random_dictionary(5, 4), torch.randn(3, 4), torch.arange(2)
    with pytest.raises(InvalidArgumentError, match="hides everything"):
        masked_losses(Y, A, torch.zeros(4, dtype=torch.bool), sparsity=1)
    with pytest.raises(InvalidArgumentError, match="hides nothing"):
        masked_losses(Y, A, torch.arange(4), sparsity=1)
    with pytest.raises(InvalidArgumentError, match="from 0 to 3"):
        masked_losses(Y, A, torch.tensor([4]), sparsity=1)
    with pytest.raises(ShapeError, match="4 booleans"):
        masked_losses(Y, A, torch.tensor([0.5]), sparsity=1)
    with pytest.raises(InvalidArgumentError, match="seen, 2; got 3"):
        masked_oracle_loss(A, seen, sparsity=3, noise=1.0)
    twice = torch.cat([A[:1], A[:1]])
    with pytest.raises(InvalidArgumentError, match="linearly dependent"):
        masked_oracle_loss(twice, seen, sparsity=2, noise=1.0)
    with pytest.raises(ShapeError, match=r"\(s, 2\)"):
        masked_oracle_loss(A, seen, sparsity=2, noise=1.0, supports=seen)
    with pytest.raises(TooLargeError, match="supports of 10 among 60"):
        best_sparse_losses(torch.randn(1, 20), random_dictionary(60, 20), sparsity=10)
    with pytest.raises(InvalidArgumentError, match="leaves no direction"):
        net_dictionary(torch.eye(2), num_directions=4, clearance=1.5)
    with pytest.raises(InvalidArgumentError, match="leaves no direction"):
        net_dictionary(torch.eye(1), num_directions=4, clearance=0.1)
    with pytest.raises(InvalidArgumentError, match=r"mu < 1/\(2k − 1\) = 0.3333"):
        pursuit_guarantee(noise=1.0, sparsity=2, num_atoms=9, mu=0.4)
    with pytest.raises(InvalidArgumentError, match="at least 2"):
        coherence(A[:1])
    with pytest.raises(InvalidArgumentError, match=r"`masked_losses\(sparsity=...\)`.*seen, 2"):
        masked_losses(Y, A, seen, sparsity=3)
    for call, kind in (
        (lambda M: masked_losses(Y, A, M, sparsity=1), "masked_losses"),
        (lambda M: masked_oracle_loss(A, M, sparsity=1, noise=1.0), "masked_oracle_loss"),
        (lambda M: coherence(A, M), "coherence"),
    ):
        with pytest.raises(WrongTypeError, match=rf"`{kind}\(observed\)` must be a tensor.*list"):
            call([0, 1])
    with pytest.raises(ShapeError, match=r"torch.float32 or torch.float64"):
        best_sparse_losses(Y.half(), A.half(), sparsity=1)
    with pytest.raises(ShapeError, match=r"`masked_losses\(dictionary\)`.*torch.float32"):
        masked_losses(Y.half(), A.half(), seen, sparsity=1)


@pytest.mark.parametrize("scale", [None, 1.0])  # with a scale nothing is singular
@pytest.mark.parametrize(
    ("supports", "error", "text"),
    [
        (torch.tensor([[0, 7]]), InvalidArgumentError, "from 0 to 4; got 0 to 7"),
        (torch.tensor([[0, -1]]), InvalidArgumentError, "from 0 to 4; got -1 to 0"),
        (torch.tensor([[0, 1], [2, 2]]), InvalidArgumentError, "names an atom twice"),
        (torch.zeros(0, 2, dtype=torch.int64), ShapeError, "one support or more"),
        (torch.tensor([[0.0, 1.0]]), ShapeError, "must be integers"),
        ([[0, 1]], WrongTypeError, "must be a tensor; got list"),
    ],
    ids=["high", "negative", "twice", "none", "floats", "list"],
)
def test_supports_that_are_none(
    supports: torch.Tensor, error: type[Exception], text: str, scale: float | None
) -> None:
    A = random_dictionary(5, 6)
    with pytest.raises(error, match=text):
        masked_oracle_loss(
            A, torch.arange(4), sparsity=2, noise=1.0, scale=scale, supports=supports
        )
