"""`analyze` of what strangers bring: one bad part costs no other, and nothing hopeless is begun."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import eigenscape as es
from eigenscape.analyses import plan_analysis
from eigenscape.errors import SelfTestError, TooLargeError
from eigenscape.report import compare
from eigenscape.runs import read_run
from tests.oracles.saved_swish import SavedSwish

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.randint(0, 3, (40,), generator=torch.Generator().manual_seed(1))
PARTS = ("point", "hessian", "gauss_newton", "residual", "layers", "blocks")


def small(num_classes: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, num_classes))


def quick(model: Any, loss: Any, data: Any = (X, Y), **options: Any) -> es.Analysis:
    return es.analyze(es.EmpiricalRisk(model, loss, data), budget="quick", **options)


def standing(analysis: es.Analysis) -> list[str]:
    return [name for name in PARTS if getattr(analysis, name) is not None]


class Middle(nn.Module):
    """Three layers, of which a stranger calls the middle one in a way of his own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.own(torch.tanh(self.first(x)))))

    def own(self, hidden: Tensor) -> Tensor:
        return self.middle(hidden)


# --- one part fails ------------------------------------------------------------------------------


def test_a_layer_that_fails_costs_no_other_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    from eigenscape.curvature import LayerHessian

    real = LayerHessian.__init__

    def init(self: LayerHessian, risk: es.EmpiricalRisk, layer: str, **options: Any) -> None:
        if layer == "middle":
            raise RuntimeError("a stranger's layer does what it likes")
        real(self, risk, layer, **options)

    monkeypatch.setattr(LayerHessian, "__init__", init)
    analysis = quick(Middle(), es.CrossEntropy())
    assert standing(analysis) == list(PARTS)
    assert [block.name for block in analysis.layers.layers] == ["first", "last"]
    reason = "RuntimeError: a stranger's layer does what it likes"
    assert analysis.failures == {"layer middle": reason}
    assert str(analysis.status).startswith("Failed: layer middle.")


class Images(nn.Module):
    """Two towers, as CLIP has them: what it returns is no single tensor, so there is no G."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(4, 5), nn.Linear(4, 5)

    def forward(self, image: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(self.image(image)), torch.tanh(self.text(text))


def contrastive(outputs: tuple[Tensor, Tensor], target: Any) -> Tensor:
    image, text = (F.normalize(output, dim=1) for output in outputs)
    return F.cross_entropy(image @ text.T, torch.arange(len(image)))


@pytest.fixture(scope="module")
def towers() -> es.Analysis:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    found = quick(Images(), contrastive, (X, X.flip(0), Y))
    torch.set_default_dtype(before)
    return found


def test_a_loss_without_gauss_newton_has_all_the_rest(towers: es.Analysis) -> None:
    assert standing(towers) == ["point", "hessian", "layers", "blocks"]
    assert sorted(towers.failures) == ["Gauss-Newton", "residual"]
    assert "got tuple" in towers.failures["Gauss-Newton"]
    assert len(towers.layers.layers) == 2
    assert not any("Gauss-Newton" in sentence for sentence in towers.findings)


def test_the_report_says_what_failed_and_why(towers: es.Analysis, tmp_path: Path) -> None:
    folder = towers.save(tmp_path / "run")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Failed: Gauss-Newton, residual." in page
    assert "needs a model that returns one tensor" in page
    assert 'id="three-matrices"' not in page
    assert 'id="hessian-spectrum"' in page
    again = read_run(folder).record
    assert again.failures == towers.failures
    assert again.gauss_newton is None


def test_runs_that_lack_parts_are_compared_in_those_they_have(towers: es.Analysis) -> None:
    whole = quick(small(), es.CrossEntropy())
    bare = es.analyze(
        es.EmpiricalRisk(small(), es.CrossEntropy(), (X, Y)), budget="quick", stages="layers"
    )
    for runs in ([whole, towers, bare], [bare, whole, towers]):
        found = compare(runs)
        table = dict(zip(found.quantities, found.values, strict=True))
        place = runs.index(bare)
        assert table["largest eigenvalue λ₁"][place] is None
        assert None not in table["loss"]
        assert found.plot() is not None


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_layer_with_a_wrong_derivative_leaves_what_does_not_need_it() -> None:
    """In torch 2.13 `weight_norm` is wrong when differentiated twice; G needs it once."""
    model = Middle()
    model.middle = torch.nn.utils.parametrizations.weight_norm(nn.Linear(5, 5))
    analysis = quick(model, es.CrossEntropy())
    if "Hessian" not in analysis.failures:
        pytest.skip("this version of torch has a right weight_norm")
    assert "weight_norm" in analysis.failures["Hessian"]
    assert analysis.failures["outliers"].startswith("Skipped: it needs the part 'Hessian'")
    assert analysis.gauss_newton is not None
    assert {"first", "last"} <= {block.name for block in analysis.layers.layers}


def test_where_only_the_loss_stands_the_refusal_is_raised() -> None:
    class Net(Middle):
        def own(self, hidden: Tensor) -> Tensor:
            return SavedSwish.apply(hidden)

    risk = es.EmpiricalRisk(Net(), es.CrossEntropy(), (X, Y), params=["first.*"])
    with pytest.raises(SelfTestError, match="would not be the matrix of your function"):
        es.analyze(risk, budget="quick", stages=["hessian", "block norms"])


def test_a_failed_part_is_tried_again_and_the_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eigenscape.analyses.whole import _parts

    risk = es.EmpiricalRisk(small(), es.CrossEntropy(), (X, Y))

    def full(*args: Any, **options: Any) -> None:
        raise torch.OutOfMemoryError("no memory left")

    with monkeypatch.context() as patch:
        patch.setattr(_parts, "layer_curvature", full)
        first = es.analyze(risk, budget="quick", checkpoint=tmp_path)
    assert "memory was not enough" in first.failures["layers"]
    monkeypatch.setattr(_parts, "matrix_spectrum", full)  # must not be needed any more
    second = es.analyze(risk, budget="quick", checkpoint=tmp_path)
    assert second.failures == {}
    assert standing(second) == list(PARTS)
    assert torch.equal(second.hessian.largest.values, first.hessian.largest.values)


# --- borders -------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [es.SquaredError(), es.CrossEntropy()])
def test_a_linear_model_has_no_residual(loss: Any, tmp_path: Path) -> None:
    target = X[:, :3].contiguous() if isinstance(loss, es.SquaredError) else Y
    analysis = quick(nn.Linear(4, 3), loss, (X, target))
    assert analysis.failures == {}
    assert analysis.residual.frobenius < 1e-12 * analysis.hessian.frobenius
    assert any("up to rounding" in sentence for sentence in analysis.findings)
    assert (analysis.save(tmp_path / "run") / "report.html").is_file()
    assert compare([analysis, quick(small(), es.CrossEntropy())]).plot() is not None


def test_a_loss_that_is_flat_everywhere(tmp_path: Path) -> None:
    flat = quick(small(), lambda output, target: 0.0 * output.sum() + 1.0)
    assert flat.failures == {}
    assert "All eigenvalues of the Hessian are zero." in flat.findings
    assert (flat.save(tmp_path / "run") / "report.html").is_file()


def test_a_single_parameter_and_a_single_sample(tmp_path: Path) -> None:
    model = nn.Linear(1, 1, bias=False)
    analysis = quick(model, es.SquaredError(), (torch.ones(1, 1), torch.zeros(1, 1)))
    assert analysis.failures == {}
    top = float(analysis.hessian.largest.values[0])
    assert analysis.hessian.trace == pytest.approx(top)
    assert (analysis.save(tmp_path / "run") / "report.html").is_file()


def test_the_report_shows_what_the_self_test_said(tmp_path: Path) -> None:
    risk = es.EmpiricalRisk(small(), es.CrossEntropy(), (X, Y))
    page = (es.analyze(risk, budget="quick").save(tmp_path / "on") / "report.html").read_text()
    assert "Agrees with differences of the function itself" in page
    assert "Whether the matrices are those of your function is not known" not in page
    risk = es.EmpiricalRisk(small(), es.CrossEntropy(), (X, Y), self_test=False)
    page = (es.analyze(risk, budget="quick").save(tmp_path / "off") / "report.html").read_text()
    assert "Whether the matrices are those of your function is not known" in page
    assert "as asked (`self_test=False`)" in page


# --- nothing hopeless is begun -------------------------------------------------------------------


def test_a_plan_beyond_the_memory_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eigenscape.analyses.whole import _machine

    risk = es.EmpiricalRisk(small(), es.CrossEntropy(), (X, Y))
    plan = plan_analysis(risk, budget="quick")
    monkeypatch.setattr(_machine, "available_memory", lambda device: plan.memory_bytes - 1)
    with pytest.raises(TooLargeError, match="ignore_limits=True"):
        es.analyze(risk, budget="quick", plan=plan, checkpoint=tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.name != "key.json"]
    begun = es.analyze(risk, budget="quick", plan=plan, ignore_limits=True)
    assert begun.failures == {}
    monkeypatch.undo()
    monkeypatch.setattr(_machine, "available_disk", lambda folder: plan.disk_bytes - 1)
    with pytest.raises(TooLargeError, match="of disk"):
        es.analyze(risk, budget="quick", plan=plan, checkpoint=tmp_path)
    assert es.analyze(risk, budget="quick", plan=plan).failures == {}  # writes nothing


def test_many_classes_do_not_multiply_the_cost_and_the_plan_says_so() -> None:
    costs, plans = [], []
    for classes in (30, 1000):
        data = (X, torch.arange(40) % classes)
        risk = es.EmpiricalRisk(nn.Linear(4, classes), es.CrossEntropy(), data)
        plan = plan_analysis(risk, budget="quick")
        costs.append({stage.name: stage.num_products for stage in plan.stages})
        plans.append(str(plan))
    assert costs[0] == costs[1]
    assert "not 1004: with 1000 classes" in plans[1]
    asked = plan_analysis(risk, budget="quick", num_pairs=30)
    assert (
        dict(zip(asked.names, asked.stages, strict=True))["Hessian"].num_products
        > (costs[1]["Hessian"])
    )


def test_a_first_look_names_its_samples_and_looks_at_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from eigenscape.analyses.whole import _subsample
    from eigenscape.parallel import Machine

    risk = es.EmpiricalRisk(small(), es.CrossEntropy(), (X, Y))
    assert plan_analysis(risk, budget="first-look").num_samples is None  # all are quick
    slow = Machine(flops=1e4, bandwidth=1e10)
    monkeypatch.setattr(_subsample, "machine_of", lambda kind: slow)
    assert plan_analysis(risk, budget="first-look").names == ("loss and gradient", "Hessian")
    plan = plan_analysis(risk, budget="first-look", stages=["hessian", "other-samples"])
    analysis = es.analyze(risk, budget="first-look", plan=plan)
    chosen, other = analysis.subsample.numbers, analysis.other_samples.subsample.numbers
    assert 0 < len(chosen) == plan.num_samples < 40
    assert not set(chosen.tolist()) & set(other.tolist())
    own = es.EmpiricalRisk(risk.module, es.CrossEntropy(), (X[chosen], Y[chosen]))
    assert analysis.point.loss == pytest.approx(own.value())
    assert f"A first look at {len(chosen)} of 40 samples" in analysis.findings[0]
    assert f"{len(other)} other samples gave" in analysis.findings[0]
    assert analysis.gradient_overlap is not None


def test_the_command_that_goes_on_does_not_overwrite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from eigenscape.analyses.whole import _stages
    from eigenscape.cli.app import app

    source = "import torch\nX, Y = torch.randn(9, 3), torch.arange(9) % 2\n"
    source += "def net():\n    return torch.nn.Linear(3, 2)\ndef data():\n    return X, Y\n"
    (tmp_path / "own.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    words = ["analyze", "own.py:net", "--data", "own.py:data", "--budget", "quick", "--out", "r"]
    words += ["--stages", "hessian,layers", "--num-pairs", "2"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert len(read_run("r").record.hessian.largest) == 2
    assert read_run("r").record.blocks is None

    def stop(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_stages.StageStore, "run", stop)
        stopped = CliRunner().invoke(app, [*words, "--overwrite"])
    assert stopped.exit_code == 130
    assert "--overwrite" not in stopped.stderr
    again = CliRunner().invoke(app, words)  # what it says
    assert again.exit_code == 0
    assert "Resuming" in again.stdout
    assert "--overwrite" not in json.loads(Path("r/run.json").read_text())["settings"]["command"]
    assert CliRunner().invoke(app, words).exit_code == 2  # finished: not replaced
