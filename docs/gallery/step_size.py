"""The code of `step-size.md`, block by block. It writes --write."""

import matplotlib.pyplot as plt
import torch

import eigenscape as es
from eigenscape_papers import datasets, networks
from eigenscape_papers.ensemble import SGD, Recipe, fit
from eigenscape_papers.stepsize import best_step_size, loss_after

data = datasets.load("digits", normalise="unit").to("cpu", torch.float64)


def build(seed):
    """Make the network of a seed."""
    model = networks.build("F-16", input_shape=(1, 8, 8), num_classes=10, seed=seed)
    return model.double()


recipe = Recipe(epochs=5, batch_size=32, optimizer=SGD(0.1))
trained = fit(build, data, recipe, seeds=(0,), device="cpu")
risk = es.EmpiricalRisk(trained.load_into(build(0), 0), es.CrossEntropy(), data)
print(f"loss {risk.value():.3f}")

G, g = es.GaussNewton(risk), risk.gradient()
for t in (1, 5, 20, 80):
    found = best_step_size(G, g, num_steps=t)
    after = loss_after(risk, found.step_size, num_steps=t) - risk.value()
    print(f"t = {t:2}: η* = {found.step_size:.3f} after {found.num_products} products; ", end="")
    print(f"model {found.change:+.3f}, network {after:+.3f}")
print(f"1/λ_max = {found.stable / 2:.3f}, 2/λ_max = {found.stable:.3f}")

found = best_step_size(G, g, num_steps=20)
sizes = torch.linspace(0.1, 3.0, 30, dtype=torch.float64) * found.stable
real = [loss_after(risk, float(eta), num_steps=20) - risk.value() for eta in sizes]

figure, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
top = 0.15
burst = [float(eta) for eta, change in zip(sizes, real, strict=True) if not change < top]
ax.plot(sizes, found.change_after(sizes), label="quadratic model")
ax.plot(sizes, real, "o", ms=4, label="network")
ax.plot(burst, [top - 0.01] * len(burst), "^", ms=4, color="C1", mfc="white", label="above the top")
ax.plot(found.step_size, found.change, "*", ms=11, color="black", label="η*")
ax.axvline(found.stable, color="gray", ls=":", label="2/λ_max")
ax.set(xlabel="step size", ylabel="change of the loss", ylim=(-0.26, top))
ax.legend(loc="lower right")
figure.savefig("gallery-step-size.png", dpi=120)
best = int(torch.tensor(real).argmin())
print(f"best step size of the network: {float(sizes[best]):.3f}")
