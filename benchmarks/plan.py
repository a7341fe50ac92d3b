"""How much of everything, and how our own operators are made: what all sections share."""

import warnings
from dataclasses import dataclass
from typing import Any

import rivals
import torch
from problems import Problem
from timing import best_time

import eigenscape as es

ROUNDING = 1e-4  # a float32 product further off than this has another reason than rounding


@dataclass(frozen=True)
class Plan:
    """How much of everything.

    Attributes:
        device: Where it runs.
        quick: Whether this is a rehearsal.
        rounds: Rounds of (a) and (d).
        seeds: Starting vectors of (b), at most.
        long_rounds: Rounds of jobs that take seconds.
        probes: Of the density.
        steps: Of the density.
        patience: Seconds after which a rival's solver is stopped.
    """

    device: torch.device
    quick: bool
    rounds: int
    seeds: int
    long_rounds: int
    probes: int
    steps: int
    patience: float


def make_plan(device: str, quick: bool, rounds: int | None) -> Plan:
    where = torch.device(device)
    if quick:
        return Plan(where, True, rounds or 1, 1, 1, 2, 8, 2.0)
    return Plan(where, False, rounds or 5, 3, 2, 10, 100, 60.0)


def best_chunk(problem: Problem, plan: Plan) -> tuple[int, dict[int, float]]:
    """Search for the chunk with which plain autograd is quickest at the gradient."""
    found = {
        size: best_time(problem.cut(size).gradient, min(3, plan.rounds))
        for size in problem.chunks()
    }
    return min(found, key=found.__getitem__), found


def risk_of(problem: Problem) -> es.EmpiricalRisk:
    """Ours at its defaults: it cuts the data itself."""
    return es.EmpiricalRisk(problem.model, es.CrossEntropy(), (problem.x, problem.y))


def our_hessian(problem: Problem, **options: Any) -> rivals.Product:
    return es.Hessian(risk_of(problem), **options).__matmul__


def our_gauss_newton(problem: Problem, **options: Any) -> rivals.Product:
    return es.GaussNewton(risk_of(problem), **options).__matmul__


def quiet() -> None:
    """Silence what is said on every call; what matters of it is in the table."""
    warnings.filterwarnings("ignore", message="Using backward.. with create_graph=True")
    warnings.filterwarnings("ignore", category=es.errors.ConvergenceWarning)
    warnings.filterwarnings("ignore", category=es.errors.SubstitutionWarning)  # fused attention
