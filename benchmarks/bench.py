"""Measure eigenscape against other libraries and plain PyTorch: one process, one table of bars.

    python benchmarks/bench.py [--quick] [--device cuda] [--sections abcdefgos] [--json FILE]

Nothing here passes or fails: see `benchmarks/README.md` for what the columns mean.
"""

import os
import sys

THREADS = 2
SETTINGS = {
    # Waiting threads must not spin: they take the other library's core away.
    "OMP_WAIT_POLICY": "PASSIVE",
    "OMP_NUM_THREADS": str(THREADS),
    "OPENBLAS_NUM_THREADS": "1",  # numpy and scipy, beside torch's own threads
}


def main() -> None:
    if any(os.environ.get(name) != value for name, value in SETTINGS.items()):
        # They are read when torch is loaded, so the script starts again with them.
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **SETTINGS})
    from session import run

    run(THREADS, SETTINGS)


if __name__ == "__main__":
    main()
