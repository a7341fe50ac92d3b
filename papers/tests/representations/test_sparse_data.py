import pytest
import torch

from eigenscape.errors import InvalidArgumentError, ShapeError, UnknownNameError, WrongTypeError
from eigenscape_papers.representations import random_dictionary, recovery_error, sparse_samples


def test_samples_are_sums_of_their_codes_and_noise() -> None:
    A = random_dictionary(7, 5)
    Y, codes = sparse_samples(A, 4000, sparsity=2, noise=0.3, seed=3)
    noise = Y - codes.combine(A)
    assert noise.std().item() == pytest.approx(0.3, rel=0.02)
    assert abs(noise.mean().item()) < 0.01
    torch.testing.assert_close(codes.values.norm(dim=1), torch.ones(4000))
    used = torch.bincount(codes.support.flatten(), minlength=7) / 4000
    torch.testing.assert_close(used, torch.full((7,), 2 / 7), atol=0.04, rtol=0)
    assert (codes.support[:, 0] != codes.support[:, 1]).all()


def test_scale_leaves_codes_unscaled() -> None:
    _, codes = sparse_samples(random_dictionary(7, 5), 4000, sparsity=2, scale=10.0)
    assert codes.values.std().item() == pytest.approx(10.0, rel=0.05)


def test_seeds() -> None:
    A = random_dictionary(7, 5)
    one, same, other = (sparse_samples(A, 3, sparsity=2, noise=0.1, seed=s)[0] for s in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert not torch.equal(A, random_dictionary(7, 5, seed=1))


def test_recovery_error_forgives_order_sign_and_surplus() -> None:
    A = random_dictionary(6, 4)
    B = torch.cat([-A.flip(0), random_dictionary(3, 4, seed=1)])
    assert recovery_error(A, B) == pytest.approx(0.0, abs=1e-12)
    assert recovery_error(B, A) > 0.01  # the surplus is not in A
    assert recovery_error(A, B[:5]) > 0.001  # one is lost


def test_squares_are_twice_cosines_for_unit_atoms() -> None:
    A, B = random_dictionary(6, 4), random_dictionary(9, 4, seed=1)
    squared = recovery_error(A, B, metric="squared")
    assert squared == pytest.approx(2 * recovery_error(A, B))
    by_hand = [min(float((a - c * b).square().sum()) for b in 2 * B for c in (1, -1)) for a in A]
    assert recovery_error(A, 2 * B, metric="squared") == pytest.approx(sum(by_hand) / 6)
    assert recovery_error(A, 2 * B) == pytest.approx(squared / 2)


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_recovery_error_of_atoms_of_any_length(scale: float) -> None:
    assert recovery_error(torch.tensor([[scale, 0.0]]), torch.eye(2)) == 0.0
    assert recovery_error(torch.eye(2), torch.tensor([[0.0, scale]])) == 0.5
    assert recovery_error(torch.tensor([[0.0, 0.0]]), torch.eye(2)) == 1.0  # no direction at all


@pytest.mark.parametrize("metric", ["cosine", "squared"])
def test_recovery_error_is_never_negative(metric: str) -> None:
    for seed in range(20):
        A = random_dictionary(5, 7, seed=seed)
        assert 0.0 <= recovery_error(A, A, metric=metric) < 1e-15


def test_refusals() -> None:
    A = random_dictionary(4, 6)
    with pytest.raises(InvalidArgumentError, match="number of atoms, 4; got 5"):
        sparse_samples(A, 3, sparsity=5)
    with pytest.raises(InvalidArgumentError, match="0 or more"):
        sparse_samples(A, 3, sparsity=1, noise=-1.0)
    with pytest.raises(InvalidArgumentError, match="scale"):
        sparse_samples(A, 3, sparsity=1, scale=0.0)
    with pytest.raises(UnknownNameError, match="'cosine', 'squared'"):
        recovery_error(A, A, metric="angle")
    with pytest.raises(ShapeError, match="6 columns"):
        recovery_error(A, A[:, :5])
    with pytest.raises(WrongTypeError, match=r"`random_dictionary\(seed=...\)` must be an integer"):
        random_dictionary(3, 4, seed=1.5)
    with pytest.raises(InvalidArgumentError, match=r"`sparse_samples\(seed=...\)` must be from 0"):
        sparse_samples(random_dictionary(3, 4), 5, sparsity=1, seed=2**32)
