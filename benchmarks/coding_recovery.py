"""Thesis Fig. 2.1 at paper scale for one seed: five sizes, two starts, baseline and masking.

    python benchmarks/coding_recovery.py --threads 2

The bar is 15 minutes on two cores. Data are made here.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch

from eigenscape_papers.runner import Workshop
from eigenscape_papers.studies import STUDIES
from eigenscape_papers.thesis import STARTS, run_grid


def main(arguments: list[str] | None = None) -> None:
    """Run both starts, and print recovery errors with the time that they took."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", default="paper", choices=("paper", "laptop"))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    options = {**STUDIES["thesis-coding-recovery"].settings[given.scale].options, "num_seeds": 1}
    points = [{"num_learned": p} for p in options["learned"]]
    total = 0.0
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(Path(folder), torch.device(given.device))
        for start in STARTS:
            begun = time.perf_counter()
            errors = run_grid(points, options, start, workshop)[:, 0]
            seconds = time.perf_counter() - begun
            total += seconds
            print(f"{start}: {seconds:.0f} s", flush=True)
            for p, row in zip(options["learned"], errors.tolist(), strict=True):
                print(f"  p' = {p:4d}: " + "  ".join(f"{value:.4f}" for value in row))
    print(f"all: {total:.0f} s on {given.threads} threads")


if __name__ == "__main__":
    main()
