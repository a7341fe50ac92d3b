"""The code of `class-structure.md`, block by block. It writes two pictures."""

import matplotlib.pyplot as plt
import torch

import eigenscape as es
from eigenscape_papers import datasets, networks
from eigenscape_papers.ensemble import SGD, Recipe, fit
from eigenscape_papers.papyan import (
    attribution,
    backpropagated_errors,
    kronecker_spectra,
    separation,
)

C = 10
data = datasets.load("digits").to("cpu", torch.float64)


def build(seed):
    """Make the network of a seed."""
    model = networks.build("MLP-3x24-BN", input_shape=(1, 8, 8), num_classes=C, seed=seed)
    return model.double()


recipe = Recipe(epochs=12, batch_size=32, optimizer=SGD(0.1, momentum=0.9, weight_decay=5e-4))
trained = fit(build, data, recipe, seeds=(0,), device="cpu")
model = trained.load_into(build(0), 0).eval()
risk = es.EmpiricalRisk(model, es.CrossEntropy(), data)
print(f"loss {risk.value():.4f}")

gradients = es.ClassGradients(risk, "fc3.weight")


def dense(operator):
    """Return the matrix, symmetric to the last bit."""
    matrix = operator.to_dense()
    return (matrix + matrix.T) / 2


parts = {name: dense(gradients.part(name)) for name in ("class", "cross", "within", "same")}
G = dense(gradients.total)
print(f"left over: {(G - sum(parts.values())).norm() / G.norm():.0e}")
for name, part in parts.items():
    print(f"{name:6} has {part.trace() / G.trace():.3f} of the trace")

figure, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
for name, matrix in {"G": G, **parts}.items():
    values = torch.linalg.eigvalsh(matrix).flip(0)[:100]
    kept = values > 1e-5 * values[0]
    ax.semilogy(torch.arange(1, 101)[kept], values[kept], "o", ms=3, label=name)
ax.set(xlabel="index", ylabel="eigenvalue")
ax.legend()
figure.savefig("gallery-class-parts.png", dpi=120)

for name in ("class", "cross", "same"):
    both = (es.Dense(matrix) for matrix in (G, parts[name]))
    found = attribution(*both, num_outliers=C, which="largest")
    print(f"{name:5} subtracted {found.mass_subtracted:.2f}, projected {found.mass_projected:.2f}")

layers = ("fc1", "fc2", "fc3", "fc4")
seen = {layer: backpropagated_errors(risk, layer) for layer in layers}
features = {layer: found.features for layer, found in seen.items()}
apart = separation(features, data.targets)
for layer, ratio, whiskers, share in zip(
    layers, apart.ratios[:, -1], apart.whiskers, apart.centre_accuracy, strict=True
):
    print(f"into {layer}: {ratio:.2f} of the bulk, spread {whiskers:.1f}, {share:.3f} right")

figure, ax = plt.subplots(figsize=(7, 2.8), layout="constrained")
for values, label in zip(apart.class_values / apart.bulk[:, None], layers, strict=True):
    ax.semilogy(range(1, C + 1), values, "o-", ms=3, label=f"into {label}")
ax.axhline(1.0, ls=":", color="gray")
ax.set(xlabel="index", ylabel="class eigenvalues / bulk")
ax.legend()
figure.savefig("gallery-class-depth.png", dpi=120)

spectra = kronecker_spectra(risk, "fc3.weight")
for count in (C, C * C):
    kfac, cfac = spectra.kronecker_distances[count - 1], spectra.class_distances[count - 1]
    print(f"{count:3} largest: KFAC is off by {kfac:.2f}, CFAC by {cfac:.2f}")

W, inside = model.get_parameter("fc3.weight").detach(), seen["fc3"]
true = inside.errors[torch.arange(len(inside.classes)), inside.classes]
end = -true.T @ inside.features
print(f"cosine of W and that end: {(W * end).sum() / (W.norm() * end.norm()):.2f}")

errors, inputs = (es.class_structure(v, classes=inside.classes) for v in (true, inside.features))
between = errors.product_with(inputs)


def without(part):
    """Return W with the C leading singular directions of a part projected out on both sides."""
    U, _, Vt = torch.linalg.svd(part)
    P, Q = (torch.eye(24, dtype=W.dtype) - F @ F.T for F in (U[:, :C], Vt[:C].T))
    return P @ W @ Q


chance = torch.randn(24, 24, generator=torch.Generator().manual_seed(0), dtype=W.dtype)
sizes = torch.linalg.svdvals(W)
print(f"W has {sizes[0]:.2f} to {sizes[C - 1]:.2f}, then {sizes[C]:.2f}")
for name, part in {"classes": between, "random directions": chance}.items():
    print(f"without {name}: {torch.linalg.svdvals(without(part))[0]:.2f}")
