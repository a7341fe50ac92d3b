"""All that Wu asks of the layers of one LeNet5, on all of CIFAR-10, with certificates in float64.

    python benchmarks/lenet_layers.py --data-dir DATA --device cuda

Trains LeNet5 for some epochs, then takes each of its five layers: top pairs of the Hessian (260 of
fc1, 200 of fc2, all of the others up to 200, whose blocks are formed), E[M], E[xxᵀ], and how much
the top eigenspaces have in common with those of E[M] ⊗ E[xxᵀ]. The bar on an H200 is ten seconds.
"""

import argparse
import time

import torch

from eigenscape.analyses import eigenspace_overlap
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from eigenscape_papers.datasets import load
from eigenscape_papers.ensemble import SGD, Recipe, fit
from eigenscape_papers.networks import build
from eigenscape_papers.runner import matrix_layers, take_portrait

PAIRS = {"fc1": 260}
OTHERS = 200


def main(arguments: list[str] | None = None) -> None:
    """Train, and take every layer twice: the first time libraries are loaded."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-dir")
    parser.add_argument("--samples", type=int, help="all by default")
    parser.add_argument("--model", default="LeNet5")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args(arguments)
    data = load(given.data, folder=given.data_dir, normalise="unit")
    data = data if given.samples is None else data.take(given.samples)
    sizes = {"input_shape": data.input_shape, "num_classes": data.num_classes, "init": "pytorch"}
    recipe = Recipe(given.epochs, batch_size=128, optimizer=SGD(0.01, momentum=0.9))
    training = fit(
        lambda seed: build(given.model, **sizes, seed=seed),
        data,
        recipe,
        seeds=(0,),
        device=given.device,
    )
    model = training.load_into(build(given.model, **sizes, seed=0), 0)
    data = data.to(given.device, torch.float64)
    risk = EmpiricalRisk(model.to(given.device).double(), CrossEntropy(), data)
    print(f"{risk.num_samples} images, loss {risk.value():.2g}, {given.device}", flush=True)
    for _ in range(given.rounds):
        total = 0.0
        for layer in matrix_layers(risk):
            begun = time.perf_counter()
            seen = take_portrait(risk, layer, PAIRS.get(layer, OTHERS))
            count = len(seen.values)
            common = eigenspace_overlap(seen.pairs, seen.kronecker_pairs(count)).overlaps
            least = float(common[: seen.num_outputs].min())  # on the host: all is done
            seconds = time.perf_counter() - begun
            total += seconds
            worst = float(seen.pairs.residuals.max() / seen.values[0])
            print(
                f"{layer:6s} {seen.num_parameters:6d} parameters, {count:3d} pairs {seconds:7.2f} s"
                f"   residuals up to {worst:.1e} λ₁, overlap with E[M] ⊗ E[xxᵀ] from {least:.2f}",
                flush=True,
            )
        print(f"all    {total:.2f} s", flush=True)


if __name__ == "__main__":
    main()
