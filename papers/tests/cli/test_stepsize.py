import json
import math
import subprocess
import sys

import pytest
import torch

from eigenscape.cli._subject import load_data, load_model
from eigenscape.curvature import GaussNewton, Hessian
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from eigenscape.runs import read_run
from eigenscape_papers.stepsize import StepSize, best_step_size, loss_after
from tests.cli.conftest import Cli

# Sure of wrong answers, a network stands where its loss bends down.
WRONG = """

def wrong():
    torch.manual_seed(0)
    model = build()
    with torch.no_grad():
        model[0].weight.mul_(3)
        model[2].weight.mul_(3)
    return model
"""
WORDS = ("stepsize", "net.py:build", "--data", "net.py:data", "--dtype", "float64")


def expected(matrix: type, steps: int) -> tuple[StepSize, EmpiricalRisk]:
    data = load_data("net.py:data")
    model = load_model("net.py:build", data).double()
    risk = EmpiricalRisk(model, CrossEntropy(), data)
    return best_step_size(matrix(risk), risk.gradient(), num_steps=steps), risk


def test_it_prints_the_step_size_beside_the_usual_ones(cli: Cli) -> None:
    result = cli(*WORDS, "--steps", 5, "--matrix", "gauss-newton")
    assert result.exit_code == 0, result.output
    assert "2/λ_max" in result.stdout
    assert "In 5 steps of gradient descent" in result.stdout
    assert "for 5 steps" in result.stdout
    assert "none but rounding" in result.stdout
    assert "change of the loss" not in result.stdout


def test_one_step_is_one(cli: Cli) -> None:
    result = cli(*WORDS, "--steps", 1, "--matrix", "gauss-newton")
    assert result.exit_code == 0, result.output
    assert "In 1 step of gradient descent" in result.stdout


@pytest.mark.parametrize(
    ("name", "matrix", "steps"), [("hessian", Hessian, 1), ("gauss-newton", GaussNewton, 3)]
)
def test_numbers_are_those_of_the_library(cli: Cli, name: str, matrix: type, steps: int) -> None:
    torch.manual_seed(0)
    result = cli(*WORDS, "--steps", steps, "--matrix", name, "--check", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["num_steps"] == steps
    torch.manual_seed(0)
    ours, risk = expected(matrix, steps)
    assert found["step_size"] == pytest.approx(ours.step_size, rel=1e-6)
    assert found["stable"] == pytest.approx(ours.stable, rel=1e-6)
    change = loss_after(risk, ours.step_size, num_steps=steps) - risk.value()
    assert found["measured"]["best for t steps"] == pytest.approx(change, rel=1e-5)


def test_it_is_kept_and_checked(cli: Cli, no_pictures: None) -> None:
    result = cli(*WORDS, "--steps", 4, "--check", "--out", "kept")
    assert result.exit_code == 0, result.output
    assert "change of the loss" in result.stdout
    record = read_run("kept").record
    assert isinstance(record, StepSize)
    assert record.num_steps == 4
    # A process that never imported the room of the record, as the user's next one.
    command = [sys.executable, "-m", "eigenscape", "show", "kept"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert "2/λ_max" in shown.stdout


def test_negative_curvature_is_refused_without_a_number(cli: Cli) -> None:
    with open("net.py", "a") as file:
        file.write(WRONG)
    words = ("stepsize", "net.py:wrong", *WORDS[2:], "--matrix", "hessian", "--steps", 30)
    result = cli(*words, "--check", "--out", "kept")
    assert result.exit_code == 1, result.output
    assert "falls without end" in result.stdout
    assert "gauss-newton" in result.stdout
    assert "λ_min" in result.stdout
    assert "best for t steps" not in result.stdout
    assert "error of η*" not in result.stdout
    found = json.loads(cli(*words, "--json").stdout, parse_constant=pytest.fail)
    assert found["step_size"] is None
    assert found["change"] is None
    assert found["smallest"] < 0 < found["largest"]
    assert math.isnan(read_run("kept").record.step_size)


def test_uncertain_answers_end_with_another_code(cli: Cli) -> None:
    result = cli(*WORDS, "--steps", 60, "--products", 1)
    assert result.exit_code == 1
    assert "more products" in result.stdout


def test_refusals(cli: Cli) -> None:
    assert cli(*WORDS, "--steps", 0).exit_code == 2
    assert cli("stepsize", "net.py:nothing", "--data", "net.py:data").exit_code == 2
