"""Train a small classifier, look at its curvature, check what we see, draw it.

Run it as a script or cell by cell. It takes well under a minute on two cores.
"""

# %% A small classifier on the handwritten digits that come with scikit-learn
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import eigenscape as es
from eigenscape.linalg import Kernel, XTrace

torch.manual_seed(0)
digits = load_digits()
X = torch.tensor(digits.data, dtype=torch.float32) / 16.0
y = torch.tensor(digits.target)
model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
# Chosen among ten settings for a clear gap below the outliers. With weight decay 5e-4 and 20 epochs
# the widest gap comes after the first eigenvalue, and nothing marks the ninth.
optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-3)
for _ in range(60):
    for batch in torch.randperm(len(X)).split(64):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(X[batch]), y[batch]).backward()
        optimiser.step()
accuracy = (model(X).argmax(1) == y).float().mean().item()
print(f"trained: {len(X)} digits, accuracy {accuracy:.1%}")

# %% The function whose curvature we study. In float64 the certificates below are sharp.
risk = es.EmpiricalRisk(model.double(), es.CrossEntropy(), (X, y))
H, G, E = es.Hessian(risk), es.GaussNewton(risk), es.Residual(risk)
print(f"loss {risk.value():.4f}, ‖gradient‖ {risk.gradient().norm():.1e}, Hessian {H.shape}")

probe = torch.randn(risk.space.size, dtype=torch.float64)
torch.testing.assert_close(H @ probe, G @ probe + E @ probe, rtol=1e-10, atol=1e-12)

# %% The top of the spectrum. Each residual is a certificate: an eigenvalue lies within λ ± residual
pairs = es.eigsh(H, num_pairs=15)
print(f"\n{'':>4}{'eigenvalue':>12}{'residual':>10}")
for i, (value, residual) in enumerate(zip(pairs.values, pairs.residuals, strict=True), start=1):
    print(f"{i:>4}{value:>12.5f}{residual:>10.0e}")
print(pairs.status)
assert pairs.status.converged
assert (pairs.residuals <= 1e-6 * pairs.values).all()

ratios = pairs.values[:-1] / pairs.values[1:]
outliers = int(ratios.argmax()) + 1
print(
    f"The widest gap, a factor {ratios.max():.2f}, comes after eigenvalue {outliers}: {outliers} "
    "outliers for 10 classes.\n(A softmax ignores a constant added to all logits, so 9 is natural.)"
)

# %% The bottom, the trace, one layer
lowest = es.eigsh(H, num_pairs=1, which="smallest")
print(f"\nmost negative eigenvalue   {lowest.values[0]:.5f} ± {lowest.residuals[0]:.0e}")
trace = es.trace(H, num_products=120, method=XTrace())
print(f"trace                      {trace.value:.3f} ± {trace.stderr:.3f} (standard error)")
layer = es.LayerHessian(risk, "2")
top = es.eigsh(layer, num_pairs=1)
print(f"last layer alone           {layer.shape}, largest eigenvalue {top.values[0]:.5f}")
assert top.values[0] <= pairs.values[0] + pairs.residuals[0]  # a block is below the whole

# %% The density: outliers taken out exactly, the rest with a standard-error band. A logarithmic
# axis looks closely at small |λ| and needs more steps to see anything there.
rho = es.spectral_density(
    H, num_steps=120, num_probes=10, outliers=pairs, kernel=Kernel(width=0.005)
)
log_rho = es.spectral_density(
    H,
    num_steps=600,
    num_probes=4,
    outliers=pairs,
    scale="log",
    epsilon=1e-5,
    kernel=Kernel(width=0.3),
)
n, (mean, stderr) = risk.space.size, rho.moment(1)
print(f"trace, from the density    {n * mean:.3f} ± {n * stderr:.3f}")
below, below_stderr = rho.count(float("-inf"), -1e-2)
print(f"eigenvalues below −0.01    {below:.0f} ± {below_stderr:.0f} of {n}")
assert abs(rho.integral() - 1) < 1e-3
assert abs(log_rho.integral() - 1) < 1e-3
assert abs(n * mean - trace.value) <= 4 * ((n * stderr) ** 2 + trace.stderr**2) ** 0.5

# %% This network is small enough to form the whole matrix once and see whether all that was true
exact = torch.linalg.eigvalsh(H.to_dense()).flip(0)
torch.testing.assert_close(pairs.values, exact[:15], rtol=1e-10, atol=0)
torch.testing.assert_close(lowest.values, exact[-1:], rtol=1e-10, atol=0)
assert abs(trace.value - exact.sum()) <= 4 * trace.stderr
assert abs(below - (exact <= -1e-2).sum()) <= 4 * below_stderr
print(f"dense matrix: trace {exact.sum():.3f}, {(exact <= -1e-2).sum()} eigenvalues below −0.01")

# %% The picture
plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.1), layout="constrained", width_ratios=(3, 2))
for axis, density in zip(axes, (rho, log_rho), strict=True):
    one = 1 / (n * density.sigma * (2 * torch.pi) ** 0.5)  # a single eigenvalue, as drawn here
    floor = one / 10
    truth = exact if density is rho else (exact.abs() + density.epsilon).log()
    spikes = density.spikes if density is rho else density.spikes.log()
    rest = one * torch.exp(-(((density.grid[:, None] - truth[15:]) / density.sigma) ** 2) / 2).sum(
        1
    )
    low = (density.density - 2 * density.stderr).clamp_min(floor)
    high = (density.density + 2 * density.stderr).clamp_min(floor)
    axis.fill_between(density.grid, low, high, color="#6baed6", lw=0, label="± 2 standard errors")
    axis.plot(density.grid, density.density.clamp_min(floor), color="#08519c", lw=1.2, label="bulk")
    axis.plot(density.grid, rest.clamp_min(floor), "k:", lw=1.0, label="bulk, dense matrix")
    axis.set(yscale="log", ylim=(floor, None))
    for part, colour, label in (
        (spikes[:outliers], "#cb181d", f"{outliers} outliers, exact"),
        (spikes[outliers:], "#969696", f"the next {len(pairs) - outliers}, exact"),
    ):
        axis.vlines(part, floor, one, color=colour, lw=1.1, label=label)
        axis.plot(part, torch.full_like(part, one), "o", color=colour, ms=2.5)
axes[0].set(xlabel="eigenvalue λ", ylabel="density", title=f"Hessian, {n} parameters")
axes[0].legend(frameon=False, fontsize=8)
decades = range(-4, 1, 2)
axes[1].set(xlabel="|λ| + 10⁻⁵", ylabel="density of log|λ|", title="the same on a log axis")
axes[1].set_xticks(
    [torch.tensor(10.0**k).log() for k in decades], [f"$10^{{{k}}}$" for k in decades]
)
folder = Path("runs/quickstart")
folder.mkdir(parents=True, exist_ok=True)
figure.savefig(folder / "spectrum.png", dpi=150)
print(f"\npicture: {(folder / 'spectrum.png').resolve()}")
