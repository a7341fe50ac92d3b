"""The code of `common-eigenspaces.md`, block by block. It writes three pictures."""

from itertools import combinations

import matplotlib.pyplot as plt
import torch

import eigenscape as es
from eigenscape.analyses import (
    autocorrelations,
    eigenspace_overlap,
    kronecker_fit,
)
from eigenscape_papers import datasets, networks
from eigenscape_papers.ensemble import SGD, Recipe, fit
from eigenscape_papers.wu import eigenvector_correspondence, overlap_prediction

SEEDS = (0, 1, 2)
data = datasets.load("digits").to("cpu", torch.float64)


def build(seed):
    """Make the network of a seed."""
    model = networks.build("F-32^2", input_shape=(1, 8, 8), num_classes=10, seed=seed)
    return model.double()


recipe = Recipe(epochs=60, batch_size=32, optimizer=SGD(0.05))
trained = fit(build, data, recipe, seeds=SEEDS, device="cpu")
models = [trained.load_into(build(seed), seed) for seed in SEEDS]
risks = [es.EmpiricalRisk(model.eval(), es.CrossEntropy(), data) for model in models]
print("loss:", ", ".join(f"{risk.value():.4f}" for risk in risks))

LAYERS = ("fc1", "fc2")
pairs = {
    layer: [es.eigsh(es.LayerHessian(risk, f"{layer}.weight"), num_pairs=64) for risk in risks]
    for layer in LAYERS
}
print(pairs["fc1"][0].status)

figure, axes = plt.subplots(1, 2, figsize=(7, 2.8), layout="constrained")
overlaps = {}
for layer, ax in zip(LAYERS, axes, strict=True):
    found = [eigenspace_overlap(a, b) for a, b in combinations(pairs[layer], 2)]
    overlaps[layer] = torch.stack([each.overlaps for each in found]).mean(0)
    for each in found:
        each.plot(ax)
    ax.set_title(f"{layer}, three pairs of networks")
    peak = int((overlaps[layer] - found[0].chance)[:32].argmax()) + 1
    times = float(overlaps[layer][peak - 1] / found[0].chance[peak - 1])
    print(f"{layer}: {overlaps[layer][peak - 1]:.3f} at k = {peak}, {times:.0f} times chance")
figure.savefig("gallery-overlap.png", dpi=120)

factors = {
    layer: [es.KroneckerHessian(risk, f"{layer}.weight") for risk in risks] for layer in LAYERS
}
first = pairs["fc2"][0].vectors[:, :24]
made_of = eigenvector_correspondence(first, factors["fc2"][0])
made_of.plot().figure.savefig("gallery-correspondence.png", dpi=120)
print("share of v1:", " ".join(f"{share:.2f}" for share in made_of.input[0, :9]))

for entry in autocorrelations(risks[0], LAYERS).layers:
    print(f"{entry.layer}: (v1 . mean)^2 = {entry.alignment:.4f}, ratio {entry.ratio:.1f}")

figure, axes = plt.subplots(1, 2, figsize=(7, 2.8), layout="constrained")
for layer, ax in zip(LAYERS, axes, strict=True):
    found = [
        overlap_prediction(a, b, num_vectors=64, num_inputs=10)
        for a, b in combinations(factors[layer], 2)
    ]
    predicted = torch.stack([each.overlaps for each in found]).mean(0)
    k = torch.arange(1, 65)
    ax.plot(k, overlaps[layer], label="measured")
    ax.plot(k, predicted, "--", label="predicted")
    ax.plot(k, found[0].chance, ":", color="gray", label="chance")
    ax.set(title=layer, xlabel="number of eigenvectors k", ylabel="overlap", ylim=(0, None))
    common = sum(each.alignment for each in found) / len(found)
    reach = [each.reach for each in found]
    print(f"{layer}: (t . t')^2 = {common:.2f}, one v only up to k = {reach}")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
figure.savefig("gallery-prediction.png", dpi=120)

for layer in LAYERS:
    fits = [kronecker_fit(risk, f"{layer}.weight", num_pairs=6) for risk in risks]
    for rows in zip(*(found.approximations for found in fits), strict=True):
        error = sum(row.frobenius_error for row in rows) / len(rows)
        common = sum(float(row.overlaps[5]) for row in rows) / len(rows)
        print(f"{layer}, {rows[0].name}: error {error:.2f}, top six {common:.2f}")
