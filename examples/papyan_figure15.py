"""Draw Papyan's Figure 15 again: estimated spectra over exact ones, on two synthetic matrices.

(a) A Wishart matrix with three spikes. (b) The log-spectrum of a matrix with a heavy tail. Both
with ten probes, as in the paper. Run it from the root of the repository; it takes about a minute.
"""

# %% The two matrices
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

import eigenscape as es
from eigenscape.linalg import Kernel

FOLDER = Path("docs/images")
generator = np.random.default_rng(15)

Z = torch.from_numpy(generator.standard_normal((2000, 2000)))
spiked = Z @ Z.T / 2000
spiked[range(3), range(3)] += torch.tensor([5.0, 4.0, 3.0], dtype=torch.float64)

# The caption says Z Zᵀ for a matrix of 1000 × 1000; with Z of 500 × 1000 that is Zᵀ Z, half zeros.
Z = torch.from_numpy(1.0 + generator.pareto(1.0, (500, 1000)))
heavy = Z.T @ Z / 1000

plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})


def draw(axis, exact, rho, label):
    """Draw the exact histogram, 100 bins, and the estimate with its band on a log axis."""
    weights = np.full(len(exact), 1 / len(exact))
    counts, edges = np.histogram(exact, bins=100, weights=weights)
    axis.stairs(counts / np.diff(edges), edges, fill=True, color="#9ecae1", label="exact, 100 bins")
    low, high = (rho.density + sign * 2 * rho.stderr for sign in (-1, 1))
    axis.fill_between(rho.grid, low, high, color="#cb181d", alpha=0.3, lw=0, label="± 2 st. errors")
    axis.plot(rho.grid, rho.density, color="#cb181d", lw=1.0, label=label)
    axis.set(yscale="log", ylabel="density")


# %% (a) The paper's settings: no reorthogonalisation, κ = 3, 1024 points
spiked = es.Dense((spiked + spiked.T) / 2)
rho = es.spectral_density(
    spiked,
    num_steps=128,
    num_probes=10,
    reorthogonalise=False,
    kernel=Kernel(kappa=3),
    num_points=1024,
)
exact = torch.linalg.eigvalsh(spiked.to_dense())
figure, axis = plt.subplots(figsize=(5.6, 3.1), layout="constrained")
draw(axis, exact.numpy(), rho, "estimate, 128 steps")
axis.set(xlabel="eigenvalue λ", ylim=(1e-4, 20))
axis.legend(frameon=False)
figure.savefig(FOLDER / "papyan15a.png", dpi=130)
assert abs(rho.integral() - 1) < 1e-3
assert abs(rho.moment(1)[0] - exact.mean()) <= 4 * rho.moment(1)[1]

# %% (b) The logarithm of a heavy-tailed spectrum, with and without reorthogonalisation. ε = 1 is
# far below the smallest eigenvalue that is not zero, and keeps the zeros on the page.
heavy = es.Dense((heavy + heavy.T) / 2)
settings = {"num_steps": 256, "num_probes": 10, "scale": "log", "epsilon": 1.0}
rho = es.spectral_density(heavy, **settings, kernel=Kernel(width=0.15))
fast = es.spectral_density(heavy, **settings, kernel=Kernel(width=0.15), reorthogonalise=False)
exact = torch.linalg.eigvalsh(heavy.to_dense())
figure, axis = plt.subplots(figsize=(5.6, 3.1), layout="constrained")
draw(axis, (exact.abs() + 1).log().numpy(), rho, "estimate, 256 steps")
axis.plot(fast.grid, fast.density, "k:", lw=0.9, label="without reorthogonalisation")
axis.set(xlabel="log(λ + 1)", ylim=(2e-4, 8))
axis.legend(frameon=False)
figure.savefig(FOLDER / "papyan15b.png", dpi=130)
assert abs(rho.integral() - 1) < 1e-3
