"""Wu Figs 5, 9–11, 13: the overlap for other widths, other trainings and deeper networks.

Figs 25 and 26 have correspondences of eigenvectors of VGG11 too: see wu-correspondence-deep.
"""

from functools import partial

import torch

from eigenscape_papers.runner import Setting, described
from eigenscape_papers.wu import networks as casts
from eigenscape_papers.wu.overlap_study import measure

TRAININGS = described(
    "wu-overlap-trainings",
    partial(measure, stem="wu.fig9"),
    Setting((casts.SMALL_MLP, casts.SMALL_MLP_MOMENTUM), {"num_pairs": 60}),
    Setting((casts.LENET, casts.LENET_SMALL_STEP, casts.LENET_TRICKS), {"num_pairs": 200}),
    own=False,  # it takes two kinds of networks to compare
)

WIDTHS = described(
    "wu-overlap-widths",
    partial(measure, stem="wu.fig5"),
    Setting((casts.SMALL_MLP, casts.SMALL_MLP_NARROW), {"num_pairs": 60}),
    Setting(casts.LENET_WIDTHS, {"num_pairs": 300}),
    own=False,  # it takes two kinds of networks to compare
)

DEEP = described(
    "wu-overlap-deep",
    partial(measure, stem="wu.fig10"),
    Setting((casts.SMALL_CONV,), {"num_pairs": 60}),
    # Convolutions in float64 take ten times as long on a GPU.
    Setting((casts.VGG, casts.RESNET), {"num_pairs": 48}, dtype=torch.float32),
)
