import dataclasses

from eigenscape_papers import datasets as data
from eigenscape_papers.networks import build
from eigenscape_papers.runner import Cast
from eigenscape_papers.studies import STUDIES
from eigenscape_papers.wu import networks as wu_casts

CASTS = [v for v in vars(wu_casts).values() if isinstance(v, Cast)]
CASTS += [c for v in vars(wu_casts).values() if isinstance(v, tuple) for c in v if type(c) is Cast]


def test_names_are_known_and_networks_can_be_built() -> None:
    for cast in {(c.model, c.data): c for c in CASTS if c.data in ("digits", "mnist")}.values():
        info = data.describe(cast.data)
        assert build(cast.model, input_shape=info.input_shape, num_classes=10, seed=0)


def test_every_cast_of_a_study_is_one_of_these() -> None:
    ours = [study for study in STUDIES.values() if study.paper == "Wu"]
    used = {c.key for s in ours for v in s.settings.values() for c in v.casts}
    assert used
    assert used <= {cast.key for cast in CASTS}


def test_different_casts_share_no_folder() -> None:
    assert len({cast.key for cast in CASTS}) == len(set(map(repr, CASTS)))


def test_the_papers_recipe() -> None:
    short = (wu_casts.VGG, wu_casts.VGG_WIDE, wu_casts.RESNET)  # and their study says so
    paper = [cast for cast in CASTS if cast.data in ("mnist", "cifar10") and cast not in short]
    assert {(c.recipe.epochs, c.recipe.batch_size) for c in paper} == {(1000, 128)}
    assert all(epoch < c.recipe.epochs for c in CASTS for epoch in c.keep_epochs)


def test_networks_to_compare_have_different_seeds() -> None:
    trios = (wu_casts.LENET, wu_casts.LENET_SMALL_STEP, wu_casts.LENET_TRICKS)
    seeds = [seed for cast in trios for seed in cast.seeds]
    assert len(set(seeds)) == len(seeds)


def test_random_labels_are_the_only_difference() -> None:
    for plain, random in (
        (wu_casts.MLP, wu_casts.MLP_RANDOM),
        (wu_casts.SMALL_MLP, wu_casts.SMALL_MLP_RANDOM),
    ):
        same = dataclasses.replace(plain, labels="random", seeds=(0,), keep_epochs=())
        assert same == random
