"""Files that were damaged or made up: refused in words, or read as they were; never half-read."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import eigenscape as es
from eigenscape.errors import FileError

ODD: tuple[Any, ...] = (
    None, [], {}, -1, "x", [[]], True, {"$record": []}, {"$record": "EigenPairs"},
    {"$record": "Status", "fields": 5}, {"$tensor": []}, {"$float": "q"}, "../../etc/passwd",
)  # fmt: skip


def matrix() -> es.Dense:
    torch.manual_seed(0)
    A = torch.randn(20, 20, dtype=torch.float64)
    return es.Dense(A + A.T)


def altered(value: Any, rng: random.Random) -> Any:
    """Put something else somewhere into plain values."""
    if isinstance(value, dict | list) and value and rng.random() < 0.8:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = rng.choice(list(keys))
        if rng.random() < 0.15:
            del value[key]
        else:
            value[key] = altered(value[key], rng)
        return value
    return rng.choice(ODD)


def damage(folder: Path, rng: random.Random) -> None:
    """Alter one file: a bit, its end, or a value in it."""
    files = [f for f in sorted(folder.rglob("*")) if f.suffix in (".json", ".safetensors")]
    file = rng.choice(files)
    content = bytearray(file.read_bytes())
    if file.suffix == ".json" and rng.random() < 0.7:
        content = bytearray(json.dumps(altered(json.loads(content), rng)).encode())
    elif rng.random() < 0.8:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    else:
        del content[rng.randrange(len(content)) :]
    file.write_bytes(bytes(content))


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_run_is_refused_or_read_as_it_was(tmp_path: Path, seed: int) -> None:
    pairs = es.eigsh(matrix(), num_pairs=3)
    whole = pairs.save(tmp_path / "whole")
    rng = random.Random(seed)
    refused = 0
    for number in range(50):
        folder = Path(shutil.copytree(whole, tmp_path / str(number)))
        damage(folder, rng)
        try:
            record = es.read_run(folder).record
        except FileError:
            refused += 1
            continue
        torch.testing.assert_close(record.values, pairs.values, rtol=0, atol=0)
        torch.testing.assert_close(record.vectors, pairs.vectors, rtol=0, atol=0)
    assert refused > 40


@pytest.mark.parametrize("seed", range(2))
def test_a_damaged_checkpoint_is_refused_or_gives_the_same_answer(
    tmp_path: Path, seed: int
) -> None:
    settings: dict[str, Any] = {"num_steps": 10, "num_probes": 2, "seed": 0}
    found = es.spectral_density(matrix(), checkpoint=tmp_path / "whole", **settings)
    rng = random.Random(seed)
    refused = 0
    for number in range(20):
        folder = Path(shutil.copytree(tmp_path / "whole", tmp_path / str(number)))
        damage(folder, rng)
        try:
            again = es.spectral_density(matrix(), checkpoint=folder, **settings)
        except FileError:
            refused += 1
            continue
        torch.testing.assert_close(again.nodes, found.nodes, rtol=0, atol=0)
    assert refused > 10


def test_names_from_outside_are_text_in_the_report(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    data = torch.randn(20, 3), torch.randint(0, 2, (20,))
    nasty = "<script>alert(1)</script>"
    analysis = es.analyze(
        es.EmpiricalRisk(model, es.CrossEntropy(), data),
        budget="quick",
        stages=["Hessian"],
        title=nasty,
        description={nasty: f'"><img src=x onerror=alert(2)>{nasty}'},
    )
    page = (analysis.save(tmp_path / "run") / "report.html").read_text()
    assert nasty not in page
    assert "<img src=x" not in page
