"""The whole analysis: right, independent of batches, resumable, readable."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch import nn

import eigenscape as es
from eigenscape.analyses import BUDGETS, Analysis, analyze, plan_analysis
from eigenscape.errors import CheckpointError, InvalidArgumentError
from eigenscape.records import Progress, pack, unpack
from tests.small_net import X, Y, net, oracle


def risk_of(model: nn.Module, **settings: object) -> es.EmpiricalRisk:
    return es.EmpiricalRisk(model, es.CrossEntropy(), (X, Y), **settings)


def test_numbers_are_those_of_the_dense_hessian() -> None:
    model = net()
    analysis = analyze(risk_of(model), title="a small net", description={"data": "random"})
    H = oracle(model)
    values = torch.linalg.eigvalsh(H)
    k = len(analysis.hessian.largest)
    torch.testing.assert_close(
        analysis.hessian.largest.values, values.flip(0)[:k], rtol=1e-4, atol=1e-9
    )
    assert float(analysis.hessian.smallest.values[-1]) == pytest.approx(
        float(values[0]), rel=1e-2, abs=1e-9
    )
    assert abs(analysis.hessian.trace - float(H.trace())) <= 5 * analysis.hessian.trace_stderr
    G, E = es.GaussNewton(risk_of(model)).to_dense(), es.Residual(risk_of(model)).to_dense()
    torch.testing.assert_close(H, G + E)
    for spectrum, dense in ((analysis.gauss_newton, G), (analysis.residual, E)):
        top = torch.linalg.eigvalsh(dense)[-1]
        assert float(spectrum.largest.values[0]) == pytest.approx(float(top), rel=1e-3)
    sizes = [block.num_parameters for block in analysis.layers.layers]
    starts = [0, sizes[0], sum(sizes)]
    for i, row in enumerate(analysis.blocks.values):
        for j, norm in enumerate(row):
            part = H[starts[i] : starts[i + 1], starts[j] : starts[j + 1]]
            slack = 5 * float(analysis.blocks.stderr[i, j])
            assert float(norm) == pytest.approx(float(part.norm()), abs=slack, rel=1e-6)
    assert analysis.status
    assert (analysis.title, analysis.description) == ("a small net", {"data": "random"})


def comparable(analysis: Analysis) -> dict:
    plain = {k: v for k, v in analysis.to_dict().items() if k not in ("plan", "stage_seconds")}
    for part in plain.values():
        if isinstance(part, dict):
            part.pop("seconds", None)
    return plain


@pytest.mark.parametrize("batch_size", [1, 32])
def test_batches_change_nothing(batch_size: int) -> None:
    model = net()
    whole = analyze(risk_of(model), budget="quick")
    ragged = analyze(risk_of(model, batch_size=batch_size), budget="quick")
    for one, other in zip(whole.columns()["value"], ragged.columns()["value"], strict=True):
        assert one == pytest.approx(other, rel=1e-6, abs=1e-12)


def test_the_same_seed_gives_the_same_bits() -> None:
    model = net()
    first, second = (analyze(risk_of(model), budget="quick", seed=3) for _ in range(2))
    assert comparable(first) == comparable(second)
    other = analyze(risk_of(model), budget="quick", seed=4)
    assert other.hessian.trace != first.hessian.trace


def test_an_interrupted_analysis_continues_to_the_same_bits(tmp_path: Path) -> None:
    model, seen = net(), []

    def stop(step: Progress) -> None:
        seen.append(step.task)
        if step.task == "residual: density":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        analyze(risk_of(model), budget="quick", checkpoint=tmp_path, progress=stop)
    kept = sorted(file.name for file in tmp_path.glob("*.json"))
    assert kept == ["Gauss-Newton.json", "Hessian.json", "key.json", "loss-and-gradient.json"]
    tasks: list[str] = []
    resumed = analyze(
        risk_of(model), budget="quick", checkpoint=tmp_path, progress=lambda s: tasks.append(s.task)
    )
    assert "Hessian: density" not in tasks
    assert comparable(resumed) == comparable(analyze(risk_of(model), budget="quick"))
    assert set(resumed.stage_seconds) == {stage.name for stage in resumed.plan.stages}


def test_a_checkpoint_of_another_analysis_is_refused(tmp_path: Path) -> None:
    model = net()
    analyze(risk_of(model), budget="quick", checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match="seed"):
        analyze(risk_of(model), budget="quick", checkpoint=tmp_path, seed=1)
    with torch.no_grad():
        next(model.parameters()).add_(0.1)
    with pytest.raises(CheckpointError, match="parameters"):
        analyze(risk_of(model), budget="quick", checkpoint=tmp_path)


@pytest.mark.parametrize("name", ["Hessian.safetensors", "Hessian.json"])
def test_a_damaged_stage_is_refused(tmp_path: Path, name: str) -> None:
    model = net()
    analyze(risk_of(model), budget="quick", checkpoint=tmp_path)
    file = tmp_path / name
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(CheckpointError, match=r"Hessian' is damaged.*Delete"):
        analyze(risk_of(model), budget="quick", checkpoint=tmp_path)


def test_progress_covers_the_whole_plan() -> None:
    seen: list[Progress] = []
    analyze(risk_of(net()), budget="quick", progress=seen.append)
    done = [step.done for step in seen]
    assert done == sorted(done)
    assert (done[-1], seen[-1].total) == (1000, 1000)
    assert seen[-1].seconds_left == 0.0


def test_an_analysis_goes_to_files_and_back() -> None:
    analysis = analyze(risk_of(net()), budget="quick")
    plain, tensors = pack(analysis)
    again = unpack(json.loads(json.dumps(plain, allow_nan=False)), tensors)
    assert comparable(again) == comparable(analysis)


def test_vectors_too_large_to_keep_are_left_out() -> None:
    analysis = analyze(risk_of(net()), budget="quick", keep_vector_bytes=100)
    assert analysis.hessian.largest.vectors.shape == (analysis.point.num_parameters, 0)
    assert float(analysis.gradient_overlap.shares[0]) > 0.0  # found before they went


def test_a_pure_function_has_no_layers() -> None:
    def function(params: dict, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ params["w"]) @ params["v"]

    params = {"w": torch.randn(4, 6), "v": torch.randn(6, 3)}
    risk = es.EmpiricalRisk(function, es.CrossEntropy(), (X, Y), params=params)
    analysis = analyze(risk, budget="quick")
    assert analysis.layers is None
    assert analysis.title == "a function"
    assert len(analysis.findings) == 6


def test_regression_has_no_classes_to_compare_with() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    risk = es.EmpiricalRisk(model, es.SquaredError(), (X, torch.randn(len(X), 2)))
    analysis = analyze(risk, budget="quick")
    assert analysis.outliers.num_classes is None
    assert "classes" not in " ".join(analysis.findings)
    assert "accuracy" not in list(analysis.columns()["quantity"])


def test_text_and_frame() -> None:
    analysis = analyze(risk_of(net()), budget="quick")
    text = str(analysis)
    assert "Hessian: largest eigenvalue" in text
    assert analysis.findings[0] in text
    assert analysis.to_frame()["quantity"].tolist()[:3] == ["loss", "accuracy", "gradient norm"]


def test_a_plan_for_another_budget_is_refused() -> None:
    risk = risk_of(net())
    with pytest.raises(InvalidArgumentError, match="'quick'"):
        analyze(risk, plan=plan_analysis(risk, budget="quick"))


def test_a_budget_of_ones_own() -> None:
    own = dataclasses.replace(BUDGETS["quick"], name="mine", num_pairs=3, num_smallest=0)
    analysis = analyze(risk_of(net()), budget=own)
    assert len(analysis.hessian.smallest) == 0
    assert analysis.plan.budget.name == "mine"
