"""How noisy the products of an operator are.

Letters: A the symmetric operator; v, w random vectors.
"""

from dataclasses import dataclass

from eigenscape.device import full_precision, product_defects
from eigenscape.errors import NonFiniteError, require_count
from eigenscape.linalg._products import InUnits, carries_self_test, require_symmetric
from eigenscape.operator import LinearOperator
from eigenscape.records import Record, Status


@dataclass(frozen=True, eq=False)
class NoiseFloor(Record):
    """How far products are from those of one symmetric matrix.

    Attributes:
        relative: Twice the larger of `linearity` and `asymmetry`, since a residual ‖Av − λv‖ has
            the noise of its own product and of those that v was made with. Residuals much below
            `relative`·‖A‖ cannot be reached; those below it are converged, see `operator.noise`.
        linearity: ‖A(v + w) − Av − Aw‖ / (‖Av‖ + ‖Aw‖), the largest over the probes.
        asymmetry: |vᵀAw − wᵀAv| / (‖Av‖ ‖w‖), the largest over the probes.
        absolute: ‖A(v + w) − Av − Aw‖ / (‖v‖ + ‖w‖), the largest over the probes: the error of a
            product with a unit vector.
        num_probes: Pairs of random vectors.
    """

    relative: float
    linearity: float
    asymmetry: float
    absolute: float
    num_probes: int


@carries_self_test
@full_precision()
def noise_floor(operator: LinearOperator, *, num_probes: int = 2, seed: int = 0) -> NoiseFloor:
    """Measure the noise of products, by what exact ones would not have.

    It sees what differs from product to product. What all of them share, such as weights that are
    rounded alike every time, is a change of the matrix, and no noise: compare with products in a
    wider dtype for that.

    Cost: three products per probe.

    Args:
        operator: Symmetric operator A.
        num_probes: Pairs of random vectors v, w.
        seed: Fixes them.

    Returns:
        The noise.

    Raises:
        WrongTypeError: If the operator is none.
        NotSymmetricError: If it is not symmetric.
        NonFiniteError: If a product is NaN or infinite.

    Examples:
        Products with the identity have none.

        >>> import torch
        >>> from eigenscape.operator import Dense
        >>> floor = noise_floor(Dense(torch.eye(3, dtype=torch.float64)))
        >>> floor.relative < 1e-15, floor.num_products
        (True, 6)
    """
    n = require_symmetric(operator, "noise_floor(operator)")
    require_count(num_probes, "noise_floor(num_probes=...)")
    require_count(seed, "noise_floor(seed=...)", at_least=0)
    scaled = InUnits(operator)
    defects = product_defects(
        scaled.__matmul__,
        n,
        dtype=operator.dtype,
        device=operator.device,
        num_probes=num_probes,
        seed=seed,
    )
    if not defects.absolute < float("inf"):
        raise NonFiniteError(
            f"`noise_floor` needs finite products; {operator!r} gave NaN or infinity. Check that "
            "loss and gradient are finite at these parameters."
        )
    num_products = defects.num_products + scaled.looks
    text = f"Residuals end at {defects.relative:.1e} · ‖A‖, seen with {num_products} products."
    status = Status(True, text)
    return NoiseFloor(
        status,
        num_products,
        seed,
        defects.relative,
        defects.linearity,
        defects.asymmetry,
        defects.absolute * scaled.unit,
        num_probes,
    )
