"""The code of `masked-sparse-coding.md`, block by block. It writes --write."""

import matplotlib.pyplot as plt
import torch

from eigenscape_papers.representations import (
    initial_dictionary,
    learn_dictionary,
    masked_losses,
    orthogonal_matching_pursuit,
    random_dictionary,
    recovery_error,
    sparse_samples,
)

truth = random_dictionary(80, 40)
samples, _ = sparse_samples(truth, 800, sparsity=2, noise=40**-0.5)
Y, others = samples[:400].float(), samples[400:].float()
truth = truth.float()


def unexplained(atoms):
    """Return what two atoms a sample leave over: the usual loss."""
    codes = orthogonal_matching_pursuit(Y, atoms, sparsity=2)
    return float((Y - codes.combine(atoms)).square().sum(1).mean())


print(f"the true atoms leave {unexplained(truth):.2f}")

errors, learned = {"start": [], "usual": [], "masked": []}, {}
for num in (80, 160, 400):
    first = initial_dictionary(others, num)
    errors["start"].append(recovery_error(truth, first))
    for name in ("usual", "masked"):
        found = learn_dictionary(Y, first, sparsity=2, masked=name == "masked", epochs=500)
        learned[name] = found.dictionary
        errors[name].append(recovery_error(truth, found.dictionary))
        left = unexplained(found.dictionary)
        print(f"{num} atoms, {name:6}: leaves {left:.2f}, error {errors[name][-1]:.3f}")

figure, ax = plt.subplots(figsize=(7, 3), layout="constrained")
for name, style in (("start", ":"), ("usual", "o-"), ("masked", "s-")):
    ax.plot((80, 160, 400), errors[name], style, label=name)
ax.set(xlabel="learned atoms", ylabel="error", xticks=(80, 160, 400))
ax.legend()
figure.savefig("gallery-masked-coding.png", dpi=120)

new, _ = sparse_samples(truth, 4000, sparsity=2, noise=40**-0.5, seed=1)
seen = torch.arange(36)
for name, atoms in {"truth": truth, **learned}.items():  # 400 atoms each, the last learned
    print(f"{name:6}: {float(masked_losses(new, atoms, seen, sparsity=2).mean()):.4f}")
