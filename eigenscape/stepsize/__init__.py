"""What step size does the curvature ask for? On quadratics, on least squares, on your network."""

from eigenscape.stepsize.backpropagation import backpropagated_descent as backpropagated_descent
from eigenscape.stepsize.backpropagation import backpropagated_gradient as backpropagated_gradient
from eigenscape.stepsize.learned import Course as Course
from eigenscape.stepsize.learned import LearnedRule as LearnedRule
from eigenscape.stepsize.learned import learn_rules as learn_rules
from eigenscape.stepsize.learned import train_networks as train_networks
from eigenscape.stepsize.local import StepSize as StepSize
from eigenscape.stepsize.local import best_step_size as best_step_size
from eigenscape.stepsize.local import loss_after as loss_after
from eigenscape.stepsize.problems import ProblemKind as ProblemKind
from eigenscape.stepsize.problems import Problems as Problems
from eigenscape.stepsize.problems import draw_problems as draw_problems
from eigenscape.stepsize.quadratic import Quadratic as Quadratic
from eigenscape.stepsize.quadratic import log_slope_bounds as log_slope_bounds
from eigenscape.stepsize.quadratic import meta_descent as meta_descent
from eigenscape.stepsize.quadratic import meta_gradient as meta_gradient
from eigenscape.stepsize.quadratic import meta_objective as meta_objective
from eigenscape.stepsize.quadratic import optimal_step_size as optimal_step_size
from eigenscape.stepsize.quadratic import plain_slope_bounds as plain_slope_bounds
from eigenscape.stepsize.quadratic import random_quadratic as random_quadratic
from eigenscape.stepsize.search import LearnedStepSize as LearnedStepSize
from eigenscape.stepsize.search import learn_step_size as learn_step_size
from eigenscape.stepsize.search import usual_grid as usual_grid
from eigenscape.stepsize.tasks import Tasks as Tasks
from eigenscape.stepsize.tasks import descend as descend
from eigenscape.stepsize.tasks import draw_samples as draw_samples
from eigenscape.stepsize.tasks import draw_tasks as draw_tasks
from eigenscape.stepsize.tasks import expected_distance as expected_distance
from eigenscape.stepsize.tasks import limit_distance as limit_distance
from eigenscape.stepsize.tasks import squared_distances as squared_distances
from eigenscape.stepsize.tasks import task_losses as task_losses
from eigenscape.stepsize.update_rule import UpdateRule as UpdateRule

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
