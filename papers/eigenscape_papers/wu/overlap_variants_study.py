"""Wu Figs 5, 9–11, 13: the overlap for other widths, other trainings and deeper networks.

Figs 25 and 26 have correspondences of eigenvectors of VGG11 too: see wu-correspondence-deep.
"""

from functools import partial

import torch

from eigenscape_papers.runner import Setting, Study
from eigenscape_papers.wu import networks as casts
from eigenscape_papers.wu.overlap_study import measure

TRAININGS = Study(
    name="wu-overlap-trainings",
    paper="Wu",
    where="Fig. 9; App. E.2.1",
    title="Is the overlap there between networks that were trained in different ways?",
    settings={
        "laptop": Setting((casts.SMALL_MLP, casts.SMALL_MLP_MOMENTUM), {"num_pairs": 60}),
        "paper": Setting(
            (casts.LENET, casts.LENET_SMALL_STEP, casts.LENET_TRICKS), {"num_pairs": 200}
        ),
    },
    measure=partial(measure, stem="wu.fig9"),
    own=False,  # it takes two kinds of networks to compare
)

WIDTHS = Study(
    name="wu-overlap-widths",
    paper="Wu",
    where="Fig. 5",
    title="Does the peak of the overlap move with the number of outputs?",
    settings={
        "laptop": Setting((casts.SMALL_MLP, casts.SMALL_MLP_NARROW), {"num_pairs": 60}),
        "paper": Setting(casts.LENET_WIDTHS, {"num_pairs": 300}),
    },
    measure=partial(measure, stem="wu.fig5"),
    own=False,  # it takes two kinds of networks to compare
)

DEEP = Study(
    name="wu-overlap-deep",
    paper="Wu",
    where="Figs 10, 11, 13, 25a, 26a",
    title="Do convolutions of deeper networks share their top eigenspaces?",
    settings={
        "laptop": Setting((casts.SMALL_CONV,), {"num_pairs": 60}),
        "paper": Setting(
            (casts.VGG, casts.RESNET),
            {"num_pairs": 48},
            note="CIFAR-10 alone, where the paper has CIFAR-100 too; widths of 32 and 16, where it "
            "has 48 to 200; momentum, with 100 and 60 epochs, where it has 1000 without.",
            dtype=torch.float32,  # convolutions in float64 take ten times as long on a GPU
        ),
    },
    measure=partial(measure, stem="wu.fig10"),
)
