"""How far apart are two spectra on a logarithmic axis?"""

import torch
from torch import Tensor

from eigenscape.linalg import SpectralDensity


def spectral_distance(first: SpectralDensity, second: SpectralDensity) -> float:
    """Return the Wasserstein-1 distance between two spectra on the axis log(|λ| + ε).

    It is taken between the quadrature's nodes and weights themselves, and does not depend on how
    wide a kernel they are drawn with. ε is the larger of the two.

    Args:
        first: A density.
        second: Another one, of a matrix of any size.

    Returns:
        The distance in natural logarithms.
    """
    from scipy.stats import wasserstein_distance

    epsilon = max(first.epsilon, second.epsilon)
    (x, v), (y, w) = (_atoms(density, epsilon) for density in (first, second))
    return float(wasserstein_distance(x.numpy(), y.numpy(), v.numpy(), w.numpy()))


def _atoms(density: SpectralDensity, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return places and masses of the spectral measure; a spike carries 1/n."""
    spikes = density.spikes.detach().cpu().double()
    nodes, weights = (t.detach().cpu().double() for t in (density.nodes, density.weights))
    share = (1.0 - spikes.numel() / density.size) / nodes.shape[0]
    places = torch.cat([nodes.flatten(), spikes])
    masses = torch.cat([weights.flatten() * share, torch.full_like(spikes, 1.0 / density.size)])
    return (places.abs() + epsilon).log(), masses.clamp_min(0.0)
