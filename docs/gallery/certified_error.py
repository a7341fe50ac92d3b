"""The code of `certified-error.md`, block by block. It writes gallery-certified-error.png."""

import matplotlib.pyplot as plt
import torch

import eigenscape as es
from eigenscape.bounds import bound_recipe, certify, optimise_posterior
from eigenscape_papers import datasets, networks
from eigenscape_papers.ensemble import SGD, Recipe, fit

data, test = (
    datasets.load("digits", split=split, normalise="unit").two_classes()
    for split in ("train", "test")
)


def build(seed):
    """Make the network of a seed."""
    return networks.build("F-20", input_shape=(1, 8, 8), num_classes=2, seed=seed, init="xavier")


recipe = Recipe(epochs=60, batch_size=64, optimizer=SGD(0.05, momentum=0.9))
trained = fit(build, data, recipe, seeds=(0,), device="cpu")
model, first = trained.load_into(build(0), 0), build(0).state_dict()
risk = es.EmpiricalRisk(model, es.CrossEntropy(), data)


def error(weights, part):
    """Share of a data set's examples that networks (P, k) put into the wrong class."""
    wrong = []
    for column in weights.float().T:
        params = risk.space.unflatten(column)
        answers = torch.func.functional_call(model, params, (part.inputs,)).argmax(1)
        wrong.append((answers != part.targets).double().mean())
    return float(torch.stack(wrong).mean())


w = risk.space.flatten(risk.parameters())
print(f"{len(data.targets)} examples, {risk.space.size} weights; error ", end="")
print(f"{error(w[:, None], data):.3f} in training, {error(w[:, None], test):.3f} in the test")

found = {}
for method in ("base", "iter"):
    how = dict(epochs=120, drop_every=80, batch_size=100, learning_rate=0.01)
    fitted = optimise_posterior(risk, first, recipe=bound_recipe(method, **how))
    found[method] = certify(risk, fitted.posterior, num_samples=2000, networks_at_once=20)
    c = found[method].certificate
    print(f"{method}: error of the draws {c.error:.3f}, KL {c.kl:.0f}, bound {c.bound:.3f}")

figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained", sharey=True)
for ax, (method, one) in zip(axes, found.items(), strict=True):
    layer = one.posterior.basis.layers[0]
    variances = one.posterior.variances[: layer.size]
    if method == "base":
        ax.plot(range(layer.size), variances, ".", ms=3)
        ax.set(xlabel="weight of the first layer", ylabel="posterior variance", title="BASE")
    else:
        ax.plot(layer.eigenvalues, variances, ".", ms=3, color="C1")
        ax.set(xlabel="eigenvalue", xscale="log", xlim=(1e-9, 10), title="ITER")
    ax.axhline(one.certificate.prior_variance, color="gray", ls=":")
    ax.set_yscale("log")
figure.savefig("gallery-certified-error.png", dpi=120)

for method, one in found.items():
    tight = one.posterior.variances < 0.5 * one.certificate.prior_variance
    print(f"{method}: {int(tight.sum())} directions have less than half of the prior's variance")

best = found["iter"]
fresh = best.verify(risk)
print(f"fresh draws: error {fresh.error:.3f}; at most {best.certificate.error_bound:.3f} was said")
noise = torch.randn(risk.space.size, 300, generator=torch.Generator().manual_seed(1))
print(f"test error of the draws {error(best.posterior.draw(noise), test):.3f}")
print(best.status)
