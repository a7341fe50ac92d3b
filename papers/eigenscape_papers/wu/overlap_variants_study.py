"""Wu Figs 5, 9–11, 13: the overlap for other widths, other trainings and deeper networks.

Figs 25 and 26 have correspondences of eigenvectors of VGG11 too: see wu-correspondence-deep.
"""

from functools import partial

from eigenscape_papers.runner import Study
from eigenscape_papers.wu import networks as casts
from eigenscape_papers.wu.overlap_study import measure

TRAININGS = Study.of(
    "wu-overlap-trainings",
    partial(measure, stem="wu.fig9"),
    {
        "laptop": (casts.SMALL_MLP, casts.SMALL_MLP_MOMENTUM),
        "paper": (casts.LENET, casts.LENET_SMALL_STEP, casts.LENET_TRICKS),
    },
)

WIDTHS = Study.of(
    "wu-overlap-widths",
    partial(measure, stem="wu.fig5"),
    {"laptop": (casts.SMALL_MLP, casts.SMALL_MLP_NARROW), "paper": casts.LENET_WIDTHS},
)

DEEP = Study.of(
    "wu-overlap-deep",
    partial(measure, stem="wu.fig10"),
    {"laptop": (casts.SMALL_CONV,), "paper": (casts.VGG, casts.RESNET)},
)
