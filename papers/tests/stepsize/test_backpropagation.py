import math

import pytest

from eigenscape.errors import InvalidArgumentError, ShapeError, WrongTypeError
from eigenscape_papers.stepsize import (
    Quadratic,
    backpropagated_descent,
    backpropagated_gradient,
    meta_gradient,
    meta_objective,
    optimal_step_size,
    random_quadratic,
)


def test_in_float64_it_is_the_closed_form() -> None:
    H, w = random_quadratic(6)
    q = Quadratic.of(H, w)
    for eta, t in ((0.01, 3), (0.2, 8)):
        value, slope = backpropagated_gradient(H, w, eta, num_steps=t)
        assert value == pytest.approx(float(meta_objective(q, eta, num_steps=t)))
        assert slope == pytest.approx(float(meta_gradient(q, eta, num_steps=t)))


# Tables D.1 and D.2, and what float32 does there.
@pytest.mark.parametrize(
    ("t", "eta", "usable"),
    [
        (10, 0.1, True),
        (20, 0.1, True),
        (40, 0.1, False),
        (80, 0.1, False),
        (40, 0.001, True),
        (40, 0.01, True),
        (40, 1.0, False),
    ],
)
def test_float32_fails_where_the_tables_say(t: int, eta: float, usable: bool) -> None:
    H, w = random_quadratic()
    _, slope = backpropagated_gradient(H.float(), w.float(), eta, num_steps=t)
    assert (math.isfinite(slope) and slope != 0) == usable
    exact = float(meta_gradient(Quadratic.of(H, w), eta, num_steps=t))
    if usable:
        assert slope == pytest.approx(exact, rel=0.01)
    path = backpropagated_descent(
        H.float(), w.float(), num_steps=t, step_size=eta, num_meta_steps=150
    )
    assert path.shape == (151,)
    assert float(path[0]) == eta
    assert bool((path == eta).all()) != usable
    if usable:
        best = optimal_step_size(Quadratic.of(H, w), num_steps=t)
        assert abs(float(path[-1]) / best - 1) < 0.2


def test_plain_descent_takes_the_slope_as_it_is() -> None:
    H, w = random_quadratic(4)
    path = backpropagated_descent(
        H, w, num_steps=3, step_size=0.05, method="descent", num_meta_steps=1
    )
    _, slope = backpropagated_gradient(H, w, 0.05, num_steps=3)
    assert float(path[1]) == pytest.approx(0.05 - 0.001 * slope)


def test_refusals() -> None:
    H, w = random_quadratic(4)
    with pytest.raises(InvalidArgumentError, match="method"):
        backpropagated_descent(H, w, num_steps=3, step_size=0.1, method="adam")
    with pytest.raises(InvalidArgumentError, match="step_size"):
        backpropagated_descent(H, w, num_steps=3, step_size=0.0)
    for call, way in (
        (backpropagated_gradient, {"step_size": 0.1}),
        (backpropagated_descent, {"step_size": 0.1}),
    ):
        for one, other in ((H, w[:3]), (H[:3], w)):
            with pytest.raises(ShapeError, match=rf"`{call.__name__}` needs H \(\d, \d\)"):
                call(one, other, num_steps=3, **way)
    for wrong in (math.nan, math.inf, -0.1):
        with pytest.raises(InvalidArgumentError, match="finite and 0 or more"):
            backpropagated_gradient(H, w, wrong, num_steps=3)
    with pytest.raises(WrongTypeError, match="must be a number; got str"):
        backpropagated_gradient(H, w, "fast", num_steps=3)
    assert backpropagated_gradient(H, w, 0.0, num_steps=3)[1] < 0  # there it falls
