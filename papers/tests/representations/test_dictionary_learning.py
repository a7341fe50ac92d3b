import pytest
import torch

from eigenscape.errors import InvalidArgumentError, NonFiniteError, ShapeError, WrongTypeError
from eigenscape_papers.representations import (
    initial_dictionary,
    learn_dictionary,
    orthogonal_matching_pursuit,
    random_dictionary,
    recovery_error,
    sparse_samples,
    usual_mask_size,
)


@pytest.fixture
def samples() -> torch.Tensor:
    return sparse_samples(random_dictionary(8, 11), 30, sparsity=2, noise=0.05)[0]


@pytest.mark.parametrize("masked", [False, True])
def test_steps_are_those_of_the_algorithms(samples: torch.Tensor, masked: bool) -> None:
    """Worked out again with torch.optim and autograd, batch by batch."""
    start = random_dictionary(14, 11, seed=2)
    found = learn_dictionary(
        samples,
        start,
        sparsity=2,
        masked=masked,
        epochs=3,
        batch_size=13,
        mask_size=8 if masked else None,
    )
    B = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([B], lr=1e-3)
    draw, losses = torch.Generator().manual_seed(0), []
    for _ in range(3):
        total = 0.0
        for rows in torch.randperm(30, generator=draw).split(13):
            order = torch.randperm(11, generator=draw) if masked else torch.arange(11)
            seen, judged = (order[:8], order[8:]) if masked else (order, order)
            Z = orthogonal_matching_pursuit(samples[rows][:, seen], B[:, seen], sparsity=2).dense()
            errors = (samples[rows] - Z @ B)[:, judged].square().sum(1)
            optimizer.zero_grad()
            errors.mean().backward()
            optimizer.step()
            with torch.no_grad():
                B /= B.norm(dim=1, keepdim=True)
            total += float(errors.detach().sum())
        losses.append(total / 30)
    torch.testing.assert_close(found.dictionary, B.detach())
    torch.testing.assert_close(found.losses, torch.tensor(losses))
    assert found.mask_size == (8 if masked else 11)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_samples_of_any_length_become_atoms(scale: float) -> None:
    Y = torch.tensor([[3.0, -4.0], [0.0, 0.0]], dtype=torch.float32) * scale
    torch.testing.assert_close(
        initial_dictionary(Y, 1), torch.tensor([[0.6, -0.8]], dtype=torch.float32)
    )


def test_masking_beats_the_baseline_where_atoms_are_many() -> None:
    A = random_dictionary(20, 20)
    Y, _ = sparse_samples(A, 600, sparsity=2, noise=0.2)
    start = torch.cat(
        [A, initial_dictionary(sparse_samples(A, 80, sparsity=2, noise=0.2, seed=9)[0], 80)]
    )
    errors = [
        recovery_error(A, learn_dictionary(Y, start, sparsity=2, masked=m, epochs=60).dictionary)
        for m in (False, True)
    ]
    assert errors[1] < 0.8 * errors[0], errors


def test_same_seed_same_bits_other_seed_other_masks(samples: torch.Tensor) -> None:
    start = random_dictionary(14, 11, seed=2)
    one, same, other = (
        learn_dictionary(samples, start, sparsity=2, epochs=2, seed=s).dictionary for s in (0, 0, 1)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    torch.testing.assert_close(start, random_dictionary(14, 11, seed=2))  # left alone


def test_atoms_have_length_one_and_progress_is_told(samples: torch.Tensor) -> None:
    told = []
    found = learn_dictionary(
        samples, 3 * random_dictionary(5, 11), sparsity=1, epochs=2, progress=told.append
    )
    torch.testing.assert_close(found.dictionary.norm(dim=1), torch.ones(5))
    assert [step.done for step in told] == [1, 2]
    assert "2 epochs" in str(found)


def test_initial_dictionary() -> None:
    Y = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, -2.0]])
    first = initial_dictionary(Y, 4)
    assert sorted(first[:2].tolist()) == [[0.0, -1.0], [0.6, 0.8]]  # zeros are no atom
    torch.testing.assert_close(first.norm(dim=1), torch.ones(4))
    assert initial_dictionary(Y, 1).shape == (1, 2)


def test_usual_mask_size() -> None:
    assert [usual_mask_size(d) for d in (100, 250, 19, 5)] == [90, 225, 18, 4]


def test_refusals(samples: torch.Tensor) -> None:
    start = random_dictionary(14, 11)
    with pytest.raises(InvalidArgumentError, match="0 hides everything"):
        learn_dictionary(samples, start, sparsity=2, mask_size=0)
    with pytest.raises(InvalidArgumentError, match="11 hides nothing"):
        learn_dictionary(samples, start, sparsity=2, mask_size=11)
    with pytest.raises(InvalidArgumentError, match="from 1 to 10; got 12"):
        learn_dictionary(samples, start, sparsity=2, mask_size=12)
    with pytest.raises(InvalidArgumentError, match="Leave it out"):
        learn_dictionary(samples, start, sparsity=2, masked=False, mask_size=5)
    with pytest.raises(InvalidArgumentError, match="seen, 2; got 3"):
        learn_dictionary(samples, start, sparsity=3, mask_size=2)
    with pytest.raises(InvalidArgumentError, match="number of atoms, 14; got 15"):
        learn_dictionary(samples, start, sparsity=15)
    with pytest.raises(InvalidArgumentError, match="one to see and one to hide"):
        learn_dictionary(samples[:, :1], start[:, :1], sparsity=1)
    with pytest.raises(NonFiniteError, match=r"\(Y\)"):
        learn_dictionary(samples / 0.0, start, sparsity=1)
    with pytest.raises(NonFiniteError, match="became inf in epoch 1"):
        learn_dictionary(samples * 1e200, start, sparsity=1, epochs=1)
    with pytest.raises(ShapeError, match="dtype and device"):
        learn_dictionary(samples, start.float(), sparsity=1)
    for call, given in (
        (initial_dictionary, (torch.eye(4), 2)),
        (learn_dictionary, (torch.eye(4),) * 2),
    ):
        kind = {"sparsity": 1} if call is learn_dictionary else {}
        with pytest.raises(WrongTypeError, match=rf"`{call.__name__}\(seed=...\)`"):
            call(*given, **kind, seed=1.5)
    with pytest.raises(ShapeError, match=r"`learn_dictionary\(Y\)`.*torch.float32"):
        learn_dictionary(torch.eye(4).half(), torch.eye(4).half(), sparsity=1)
