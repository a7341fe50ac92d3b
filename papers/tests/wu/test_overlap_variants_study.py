"""The overlap for other widths, other trainings and deeper networks."""

import dataclasses

import pytest

from eigenscape_papers.runner import Networks, Setting, Workshop, run_study
from eigenscape_papers.studies import STUDIES
from eigenscape_papers.wu import networks as casts


@pytest.mark.parametrize("name", ["wu-overlap-trainings", "wu-overlap-deep"])
def test_what_holds_for_any_network_is_judged(name: str, shop: Workshop, tiny: Networks) -> None:
    """Ids are made from the network's name; those of the paper's networks are not run here."""
    setting = Setting((tiny.cast,), {"num_pairs": 12})
    study = dataclasses.replace(STUDIES[name], settings={"paper": setting})
    result = run_study(study, shop, scale="paper")
    found = {f.id: f.status for f in result.findings}
    general = {name for name in found if name.endswith(("above-chance", "curve"))}
    assert general
    assert {name for name in found if found[name] != "not run"} == general


def test_claims_are_named_as_they_are_measured(shop: Workshop, tiny: Networks) -> None:
    """A claim on a network's layer is found under the id that measuring gives it."""
    study = STUDIES["wu-overlap-widths"]
    claim = study.claims[0]
    renamed = dataclasses.replace(claim, id=claim.id.replace("lenet5fc180", "f12x2"))
    setting = Setting((tiny.cast,), {"num_pairs": 12})
    own = dataclasses.replace(study, claims=(renamed,), settings={"paper": setting})
    assert run_study(own, shop, scale="paper").measured.keys() == {renamed.id}


def test_networks_of_one_label_are_compared_with_each_other() -> None:
    """All three trainings of LeNet5 are one group, as in Fig. 9: 16 networks."""
    group = STUDIES["wu-overlap-trainings"].settings["paper"].casts
    assert {cast.label for cast in group} == {casts.LENET.label}
    seeds = [seed for cast in group for seed in cast.seeds]
    assert len(seeds) == len(set(seeds)) == 16
