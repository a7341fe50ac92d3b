from eigenscape.studies import STUDIES
from eigenscape.studies._wu_overlap_claims import exception_claims, layer_claims, peak_claim


def test_a_layer_has_three_claims_under_the_networks_name() -> None:
    found = layer_claims("F-12^2", "Fig. 0", {"conv1": 3, "fc1": 5}, "wu.x")
    ends = ("peak", "height", "growth")
    assert [c.id for c in found] == [f"wu.x.f12x2.{n}.{e}" for n in ("conv1", "fc1") for e in ends]
    assert found[3] == peak_claim("F-12^2", "Fig. 0", "fc1", 5, "wu.x")
    assert "(5 without dead units)" in found[3].says


def test_the_exception_is_not_judged_by_the_theorem() -> None:
    """Wu-2020 says that fc2 of LeNet5 follows no line and reaches no height."""
    for name, stem in (("wu-overlap", "wu"), ("wu-overlap-trainings", "wu.fig9")):
        ids = {claim.id for claim in STUDIES[name].claims}
        assert ids >= {claim.id for claim in exception_claims(stem)}
        assert not ids & {f"{stem}.lenet5.fc2.height", f"{stem}.lenet5.fc2.growth"}
    assert "wu.lenet5.fc2.peak" not in {claim.id for claim in STUDIES["wu-overlap"].claims}
    assert all("Changed after the first run" in claim.why for claim in exception_claims())
