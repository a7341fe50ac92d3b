"""How far apart are two spectra on a logarithmic axis?"""

import torch
from torch import Tensor

from eigenscape.errors import NonFiniteError, ShapeError, WrongTypeError, require_positive
from eigenscape.linalg import SpectralDensity


def spectral_distance(
    first: Tensor | SpectralDensity,
    second: Tensor | SpectralDensity,
    *,
    epsilon: float | None = None,
) -> float:
    """Return the Wasserstein-1 distance between two spectra on the axis log(|λ| + ε).

    Of a density it takes the quadrature's nodes and weights themselves, so that it does not depend
    on how wide a kernel they are drawn with. Of eigenvalues each has the same weight. Cost: one
    sort of both.

    Args:
        first: A density from `spectral_density`, or all eigenvalues (n,) of a matrix.
        second: Another one, of a matrix of any size.
        epsilon: ε, below which sizes do not count. By default the larger of the two: a density's
            own, and for eigenvalues the rounding unit of their dtype times the largest |λ|.

    Returns:
        The distance in natural logarithms.

    Raises:
        WrongTypeError: If one is neither a density nor real eigenvalues.
        ShapeError: If eigenvalues are not (n,).
        NonFiniteError: If one of them is NaN or infinite.
        InvalidArgumentError: If ε is not positive.

    Examples:
        One of two eigenvalues is e² times as large, the other the same.

        >>> values = torch.tensor([1.0, 3.0], dtype=torch.float64)
        >>> other = torch.tensor([1.0, 3.0 * 2.718281828459045**2], dtype=torch.float64)
        >>> round(spectral_distance(values, other), 9)
        1.0
    """
    from scipy.stats import wasserstein_distance

    for spectrum in (first, second):
        _require_spectrum(spectrum)
    if epsilon is None:
        # Two spectra of zeros have no size of their own.
        tiny = torch.finfo(torch.float64).tiny
        epsilon = max(_epsilon(first), _epsilon(second), tiny)
    require_positive(epsilon, "spectral_distance(epsilon=...)")
    (x, v), (y, w) = (_atoms(spectrum, epsilon) for spectrum in (first, second))
    return float(wasserstein_distance(x.numpy(), y.numpy(), v.numpy(), w.numpy()))


def _require_spectrum(spectrum: Tensor | SpectralDensity) -> None:
    call = "spectral_distance(first, second)"
    if isinstance(spectrum, SpectralDensity):
        return
    if not isinstance(spectrum, Tensor) or not spectrum.dtype.is_floating_point:
        kind = spectrum.dtype if isinstance(spectrum, Tensor) else type(spectrum).__name__
        raise WrongTypeError(
            f"`{call}` needs a `SpectralDensity` or real eigenvalues (n,) each; got {kind}. Of an "
            "operator give `spectral_density(operator)`."
        )
    if spectrum.ndim != 1 or spectrum.numel() == 0:
        raise ShapeError(
            f"`{call}` needs eigenvalues (n,); got {tuple(spectrum.shape)}. Of a symmetric matrix "
            "give `torch.linalg.eigvalsh(matrix)`."
        )
    if not bool(spectrum.isfinite().all()):
        raise NonFiniteError(f"`{call}` needs finite eigenvalues; got NaN or infinity.")


def _epsilon(spectrum: Tensor | SpectralDensity) -> float:
    if isinstance(spectrum, SpectralDensity):
        return spectrum.epsilon
    return torch.finfo(spectrum.dtype).eps * float(spectrum.abs().max())


def _atoms(spectrum: Tensor | SpectralDensity, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return places and masses of the spectral measure; a spike carries 1/n."""
    if isinstance(spectrum, Tensor):
        values = spectrum.detach().cpu().double()
        return (values.abs() + epsilon).log(), torch.full_like(values, 1.0 / len(values))
    spikes = spectrum.spikes.detach().cpu().double()
    nodes, weights = (t.detach().cpu().double() for t in (spectrum.nodes, spectrum.weights))
    share = (1.0 - spikes.numel() / spectrum.size) / nodes.shape[0]
    places = torch.cat([nodes.flatten(), spikes])
    masses = torch.cat([weights.flatten() * share, torch.full_like(spikes, 1.0 / spectrum.size)])
    return (places.abs() + epsilon).log(), masses.clamp_min(0.0)
