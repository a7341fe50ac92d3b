"""Dictionaries learned on a GPU: recorded steps are those of the CPU."""

import pytest
import torch

from eigenscape_papers.representations import (
    initial_dictionary,
    learn_dictionary,
    random_dictionary,
    sparse_samples,
)

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("masked", [True, False])
def test_dictionaries_are_those_of_the_cpu(masked: bool) -> None:
    samples, _ = sparse_samples(random_dictionary(30, 20), 90, sparsity=2, noise=0.1)
    first = initial_dictionary(samples, 40)
    # Batches of 40, 40 and 10: two graphs. A recording that failed would warn, which is an error.
    found, expected = (
        learn_dictionary(
            samples.to(device),
            first.to(device),
            sparsity=2,
            masked=masked,
            epochs=5,
            batch_size=40,
        )
        for device in ("cuda", "cpu")
    )
    torch.testing.assert_close(found.dictionary.cpu(), expected.dictionary, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(found.losses, expected.losses)
