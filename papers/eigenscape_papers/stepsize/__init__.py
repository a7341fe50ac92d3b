"""Step sizes learned by descent on the loss that they lead to."""

from eigenscape_papers.stepsize.backpropagation import (
    backpropagated_descent as backpropagated_descent,
)
from eigenscape_papers.stepsize.backpropagation import (
    backpropagated_gradient as backpropagated_gradient,
)
from eigenscape_papers.stepsize.learned import Course as Course
from eigenscape_papers.stepsize.learned import LearnedRule as LearnedRule
from eigenscape_papers.stepsize.learned import learn_rules as learn_rules
from eigenscape_papers.stepsize.learned import train_networks as train_networks
from eigenscape_papers.stepsize.local import StepSize as StepSize
from eigenscape_papers.stepsize.local import best_step_size as best_step_size
from eigenscape_papers.stepsize.local import loss_after as loss_after
from eigenscape_papers.stepsize.problems import ProblemKind as ProblemKind
from eigenscape_papers.stepsize.problems import Problems as Problems
from eigenscape_papers.stepsize.problems import draw_problems as draw_problems
from eigenscape_papers.stepsize.quadratic import Quadratic as Quadratic
from eigenscape_papers.stepsize.quadratic import log_slope_bounds as log_slope_bounds
from eigenscape_papers.stepsize.quadratic import meta_descent as meta_descent
from eigenscape_papers.stepsize.quadratic import meta_gradient as meta_gradient
from eigenscape_papers.stepsize.quadratic import meta_objective as meta_objective
from eigenscape_papers.stepsize.quadratic import optimal_step_size as optimal_step_size
from eigenscape_papers.stepsize.quadratic import plain_slope_bounds as plain_slope_bounds
from eigenscape_papers.stepsize.quadratic import random_quadratic as random_quadratic
from eigenscape_papers.stepsize.search import LearnedStepSize as LearnedStepSize
from eigenscape_papers.stepsize.search import learn_step_size as learn_step_size
from eigenscape_papers.stepsize.search import usual_grid as usual_grid
from eigenscape_papers.stepsize.tasks import Tasks as Tasks
from eigenscape_papers.stepsize.tasks import descend as descend
from eigenscape_papers.stepsize.tasks import draw_samples as draw_samples
from eigenscape_papers.stepsize.tasks import draw_tasks as draw_tasks
from eigenscape_papers.stepsize.tasks import expected_distance as expected_distance
from eigenscape_papers.stepsize.tasks import limit_distance as limit_distance
from eigenscape_papers.stepsize.tasks import squared_distances as squared_distances
from eigenscape_papers.stepsize.tasks import task_losses as task_losses
from eigenscape_papers.stepsize.update_rule import Parts as Parts
from eigenscape_papers.stepsize.update_rule import UpdateRule as UpdateRule
from eigenscape_papers.stepsize.update_rule import step_features as step_features
from eigenscape_papers.stepsize.update_rule import weight_features as weight_features

__all__ = [
    "Course",
    "LearnedRule",
    "LearnedStepSize",
    "ProblemKind",
    "Problems",
    "Quadratic",
    "StepSize",
    "Tasks",
    "UpdateRule",
    "backpropagated_descent",
    "backpropagated_gradient",
    "best_step_size",
    "descend",
    "draw_problems",
    "draw_samples",
    "draw_tasks",
    "expected_distance",
    "learn_rules",
    "learn_step_size",
    "limit_distance",
    "log_slope_bounds",
    "loss_after",
    "meta_descent",
    "meta_gradient",
    "meta_objective",
    "optimal_step_size",
    "plain_slope_bounds",
    "random_quadratic",
    "squared_distances",
    "task_losses",
    "train_networks",
    "usual_grid",
]
