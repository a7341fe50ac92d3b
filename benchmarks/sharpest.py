"""Top eigenpairs of layers of a network that fits its data: a search with its sharpest samples.

    python benchmarks/sharpest.py --data-dir DATA --threads 2

Trains 784-200-200-10 on MNIST (or `--data digits`), then finds the top pairs of each layer's
Hessian twice: by `eigsh` alone, and by a search with the `sharpest_samples`. Certificates, one
product with all samples a pair, are the floor of the latter.
"""

import argparse
import time

import torch

from eigenscape.curvature import LayerHessian
from eigenscape.linalg import eigsh
from eigenscape.risk import CrossEntropy, EmpiricalRisk, sharpest_samples
from eigenscape_papers.datasets import load
from eigenscape_papers.ensemble import SGD, Recipe, Thirds, fit
from eigenscape_papers.networks import build


def main(arguments: list[str] | None = None) -> None:
    """Train, and find pairs in both ways."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", default="mnist", choices=("mnist", "digits"))
    parser.add_argument("--data-dir")
    parser.add_argument("--model", default="F-200^2")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--share", type=float, default=1e-3)
    parser.add_argument("--tolerance", type=float, default=5e-3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    data = load(given.data, folder=given.data_dir, normalise="half").to("cpu", torch.float32)
    sizes = {"input_shape": data.inputs.shape[1:], "num_classes": data.num_classes}
    recipe = Recipe(given.epochs, optimizer=SGD(0.05, momentum=0.9), schedule=Thirds())
    training = fit(lambda seed: build(given.model, **sizes, seed=seed), data, recipe, seeds=(0,))
    model = training.load_into(build(given.model, **sizes, seed=0), 0)
    risk = EmpiricalRisk(model.float(), CrossEntropy(), (data.inputs, data.targets))
    few = sharpest_samples(risk, given.share)
    print(f"loss {risk.value():.2g}; {few.num_samples} of {risk.num_samples} samples have all but")
    print(f"{given.share:g} of the curvature at the output")
    totals = {"alone": 0.0, "search": 0.0}
    for name in (n.removesuffix(".weight") for n in risk.space.names if n.endswith(".weight")):
        for way in totals:
            begun = time.perf_counter()
            H, S = (
                LayerHessian(some, f"{name}.weight", num_products=2 * given.pairs)
                for some in (risk, few)
            )
            count = min(given.pairs, H.shape[0])
            other = {} if way == "alone" else {"search": S}
            pairs = eigsh(H, num_pairs=count, tolerance=given.tolerance, **other)
            seconds = time.perf_counter() - begun
            totals[way] += seconds
            worst = float((pairs.residuals / pairs.values.abs()).max())
            print(
                f"{name} {way:7s} {seconds:7.1f} s, {pairs.num_products} products, residuals up to "
                f"{worst:.1e} |λ|{'' if pairs.status else ', not converged'}",
                flush=True,
            )
    print(f"all layers: alone {totals['alone']:.1f} s, search {totals['search']:.1f} s")


if __name__ == "__main__":
    main()
