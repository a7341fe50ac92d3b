"""Where in the landscape are we? Loss, gradient and sizes at the present parameters."""

from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.analyses.whole._pictures import point_picture
from eigenscape.records import Picture, Record, Status
from eigenscape.risk import CrossEntropy, EmpiricalRisk


@dataclass(frozen=True, eq=False)
class Point(Record):
    """Loss, gradient and sizes at one point of parameter space.

    Attributes:
        loss: The risk's value.
        accuracy: Share of loss terms whose largest output is the target's class, for classifiers
            under cross-entropy with class indices as targets; else None.
        gradient: The flat gradient (n,).
        gradient_norm: Its Euclidean norm.
        parameter_norm: The parameters' Euclidean norm.
        num_parameters: Differentiated parameters, n.
        num_samples: Samples in the data.
        num_terms: Loss terms in the data (their total weight, where they are weighted).
        num_classes: Outputs per term for classifiers, else None.
    """

    loss: float
    accuracy: float | None
    gradient: Tensor
    gradient_norm: float
    parameter_norm: float
    num_parameters: int
    num_samples: int
    num_terms: float
    num_classes: int | None

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (point_picture(self),)


def point(risk: EmpiricalRisk) -> Point:
    """Evaluate loss, gradient and, for classifiers, accuracy. Cost: one gradient, two forwards.

    Args:
        risk: The function.

    Returns:
        The record; `num_products` is 0.

    Examples:
        >>> from eigenscape.risk.losses import SquaredError
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> with torch.no_grad(): _ = model.weight.fill_(3.0)
        >>> here = point(EmpiricalRisk(model, SquaredError(), (torch.ones(4, 1), torch.ones(4, 1))))
        >>> here.loss, here.gradient_norm                        # ½·(3 − 1)², 3 − 1
        (2.0, 2.0)
    """
    gradient = risk.gradient()
    flat = risk.space.flatten(risk.parameters())
    accuracy, num_classes = _classification(risk)
    return Point(
        status=Status(True, "Exact over all data."),
        num_products=0,
        seed=0,
        loss=risk.value(),
        accuracy=accuracy,
        gradient=gradient.cpu(),
        gradient_norm=gradient.double().norm().item(),
        parameter_norm=flat.double().norm().item(),
        num_parameters=risk.space.size,
        num_samples=risk.num_samples,
        num_terms=risk.num_terms,
        num_classes=num_classes,
    )


def _classification(risk: EmpiricalRisk) -> tuple[float | None, int | None]:
    """Return accuracy and number of classes of a classifier, as far as they are defined."""
    loss = risk.loss
    if not isinstance(loss, CrossEntropy):
        return None, None
    right = labelled = soft = 0
    classes: int | None = None
    with risk.ranks.together(), torch.no_grad(), risk.evaluating():
        for batch in risk.batches:
            z, y, is_index = loss.aligned(risk.output(risk.parameters(), batch), batch.target)
            classes = z.shape[1]
            if not is_index:
                soft = 1
                break
            kept = y != loss.ignore_index
            right += int(((z.argmax(1) == y) & kept).sum())
            labelled += int(kept.sum())
    right, labelled, soft = risk.ranks.sum(torch.tensor([right, labelled, soft])).tolist()
    return None if soft else right / labelled, classes
