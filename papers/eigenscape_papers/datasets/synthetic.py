"""Random data with known laws: the Gaussian, clustered and mixture data of Dong and Papyan.

All numbers come from one generator on the CPU. It draws labels and what both splits share (cluster
centres) first, then the noise of the training split, then that of the test split: the test is new
data of the same law.
"""

import math

import torch
from torch import Tensor

from eigenscape.errors import InvalidArgumentError, require_choice, require_count, require_positive
from eigenscape_papers.datasets._random import generator
from eigenscape_papers.datasets.data_set import DataSet

_SPLITS = ("train", "test")


def gaussian(
    *,
    split: str = "train",
    dimension: int = 500,
    num_classes: int = 500,
    per_class: int = 10,
    labels: str = "random",
    seed: int = 0,
) -> DataSet:
    """Draw standard Gaussian inputs that know nothing of their labels.

    As Dong (Assumption 1; App. B.3): entries are i.i.d. N(0, 1). The defaults are those of section
    3.1; section 8 and App. B have `dimension=64, per_class=1`. The text says that labels are
    assigned randomly, while the labels in its code are i for the i-th `per_class` rows and marked
    "not used": both are offered, and the inputs have the same law either way.

    Args:
        split: "train" or "test".
        dimension: Entries of one input.
        num_classes: Number of classes.
        per_class: Samples for each class; there are `num_classes · per_class` in all.
        labels: "random" (uniform, independent) or "balanced" (exactly `per_class` of each).
        seed: Fixes every number.

    Returns:
        The data set.

    Raises:
        InvalidArgumentError: If an option is out of range.

    Examples:
        >>> gaussian(dimension=4, num_classes=3, per_class=2)
        DataSet 'gaussian' (train): 6 samples of shape (4,), 3 classes, torch.float32
    """
    require_choice(split, _SPLITS, "load('gaussian', split=...)")
    require_choice(labels, ("random", "balanced"), "load('gaussian', labels=...)")
    require_count(dimension, "load('gaussian', dimension=...)")
    require_count(num_classes, "load('gaussian', num_classes=...)")
    require_count(per_class, "load('gaussian', per_class=...)")
    draw = generator(seed, "load('gaussian', seed=...)")
    count = num_classes * per_class
    drawn = torch.randint(num_classes, (2, count), generator=draw)[_SPLITS.index(split)]
    step = (
        f"{count} standard Gaussian inputs in {dimension} dimensions, {labels} labels of "
        f"{num_classes} classes ({split}, seed {seed}); Dong App. B.3"
    )
    return DataSet(
        name="gaussian",
        inputs=_noise((count, dimension), split, draw),
        targets=drawn if labels == "random" else _blocks(num_classes, per_class),
        num_classes=num_classes,
        split=split,
        history=(step,),
    )


def clusters(
    *,
    split: str = "train",
    dimension: int = 64,
    num_classes: int = 500,
    num_clusters: int = 500,
    num_samples: int = 5000,
    noise: float = 0.05,
    seed: int = 0,
) -> DataSet:
    """Draw inputs around cluster centres on the unit sphere; a class has one cluster or more.

    As the code of Dong (App. B.2): centres are uniform on the unit sphere, and on a circle of
    radius 5 in two dimensions; each sample is its centre plus Gaussian noise of standard deviation
    0.05 an entry. The code divides with the remainder cut off, and so does this: a class gets
    `num_clusters // num_classes` clusters and a cluster `num_samples // num_clusters` samples, so
    that the paper's C = 500, K = 750 has 500 clusters. The history has the numbers that came out.

    The dimension is that of App. B.3. Its number of samples there, N = C, cannot have been meant
    for K > C; 5000 is that of section 3.1.

    Args:
        split: "train" or "test"; both have the same centres.
        dimension: Entries of one input, 2 or more.
        num_classes: Number of classes, C.
        num_clusters: Number of clusters, K, at least C.
        num_samples: Samples to share out over the clusters, at least K.
        noise: Standard deviation of the entries around their centre.
        seed: Fixes every number.

    Returns:
        The data set, ordered by class.

    Raises:
        InvalidArgumentError: If an option is out of range.

    Examples:
        >>> clusters(dimension=8, num_classes=2, num_clusters=4, num_samples=20)
        DataSet 'clusters' (train): 20 samples of shape (8,), 2 classes, torch.float32
    """
    require_choice(split, _SPLITS, "load('clusters', split=...)")
    require_count(dimension, "load('clusters', dimension=...)", at_least=2)
    require_count(num_classes, "load('clusters', num_classes=...)")
    require_count(num_clusters, "load('clusters', num_clusters=...)", at_least=num_classes)
    require_count(num_samples, "load('clusters', num_samples=...)", at_least=num_clusters)
    require_positive(noise, "load('clusters', noise=...)")
    draw = generator(seed, "load('clusters', seed=...)")
    per_class = num_clusters // num_classes
    per_cluster = num_samples // num_clusters
    made = num_classes * per_class
    if dimension == 2:
        angles = torch.arange(1, made + 1, dtype=torch.float32) * (2 * math.pi / num_clusters)
        centres = 5.0 * torch.stack([angles.cos(), angles.sin()], dim=1)
    else:
        centres = torch.randn(made, dimension, generator=draw, dtype=torch.float32)
        centres /= centres.norm(dim=1, keepdim=True)
    count = made * per_cluster
    step = (
        f"{count} inputs in {dimension} dimensions around {made} centres, {per_cluster} each, "
        f"noise {noise}, {num_classes} classes with {per_class} of the centres each "
        f"({split}, seed {seed}); Dong App. B.2"
    )
    return DataSet(
        name="clusters",
        inputs=centres.repeat_interleave(per_cluster, 0)
        + noise * _noise((count, dimension), split, draw),
        targets=_blocks(num_classes, per_class * per_cluster),
        num_classes=num_classes,
        split=split,
        history=(step,),
    )


def class_mixture(
    *,
    split: str = "train",
    dimension: int = 64,
    num_classes: int = 10,
    per_class: int = 100,
    signal: float = 5.0,
    seed: int = 0,
) -> DataSet:
    """Draw from Papyan's canonical classification model, CCM(D, C) (Def. 8.1).

    x = t e_c + z with z ~ N(0, I): class means are t times the first C canonical vectors. The text
    gives no numbers for D, C, t and n; the defaults are our choice.

    Args:
        split: "train" or "test".
        dimension: Entries of one input, D, at least C.
        num_classes: Number of classes, C.
        per_class: Samples of each class, n.
        signal: The signal-to-noise ratio t.
        seed: Fixes every number.

    Returns:
        The data set, ordered by class.

    Raises:
        InvalidArgumentError: If an option is out of range.

    Examples:
        >>> class_mixture(dimension=6, num_classes=3, per_class=4).targets.tolist()
        [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    """
    require_choice(split, _SPLITS, "load('class-mixture', split=...)")
    require_count(num_classes, "load('class-mixture', num_classes=...)")
    require_count(dimension, "load('class-mixture', dimension=...)", at_least=num_classes)
    require_count(per_class, "load('class-mixture', per_class=...)")
    if (
        isinstance(signal, bool)
        or not isinstance(signal, int | float)
        or not 0 <= signal < math.inf
    ):
        raise InvalidArgumentError(
            "`load('class-mixture', signal=...)` must be a finite number, 0 or more; got "
            f"{signal!r}."
        )
    draw = generator(seed, "load('class-mixture', seed=...)")
    targets = _blocks(num_classes, per_class)
    inputs = _noise((len(targets), dimension), split, draw)
    inputs[torch.arange(len(targets)), targets] += signal
    step = (
        f"{len(targets)} inputs in {dimension} dimensions, t = {signal} times the canonical vector "
        f"of their class plus standard Gaussian noise, {per_class} of each of {num_classes} "
        f"classes ({split}, seed {seed}); Papyan Def. 8.1"
    )
    return DataSet(
        name="class-mixture",
        inputs=inputs,
        targets=targets,
        num_classes=num_classes,
        split=split,
        history=(step,),
    )


def _noise(shape: tuple[int, int], split: str, draw: torch.Generator) -> Tensor:
    """Draw for the training split; for the test split, draw again and keep that."""
    for _ in range(_SPLITS.index(split) + 1):
        noise = torch.randn(shape, generator=draw, dtype=torch.float32)
    return noise


def _blocks(num_classes: int, size: int) -> Tensor:
    return torch.arange(num_classes).repeat_interleave(size)
