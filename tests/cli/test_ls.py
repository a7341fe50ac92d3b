import json
from pathlib import Path

from tests.cli.conftest import Cli


def test_no_runs_yet(cli: Cli, tmp_path: Path) -> None:
    result = cli("ls")
    assert result.exit_code == 0
    assert "No runs in 'runs'" in result.stdout
    (tmp_path / "empty").mkdir()
    assert "No runs in 'empty'" in cli("ls", "empty").stdout


def test_a_folder_that_is_not_there_is_refused(cli: Cli) -> None:
    result = cli("ls", "nowhere")
    assert result.exit_code == 2
    assert "nowhere" in result.stderr


def test_finished_unfinished_and_damaged_runs_are_listed(cli: Cli, finished: Path) -> None:
    runs = finished.parent
    part = runs / "half" / "checkpoint"
    part.mkdir(parents=True)
    (part / "key.json").write_text('{"command": "eigenscape analyze x", "settings": {}}')
    (runs / "broken").mkdir()
    (runs / "broken" / "run.json").write_text("{")
    result = cli("ls")
    assert result.exit_code == 0
    for words in ("finished", "unfinished", "damaged", "analysis", "loss"):
        assert words in result.stdout
    assert "Resume runs/half with: eigenscape analyze x" in result.stdout
    states = {
        Path(row["path"]).name: row["state"] for row in json.loads(cli("ls", "--json").stdout)
    }
    assert states == {"broken": "damaged", "half": "unfinished", "one": "finished"}


def test_verify_reads_every_file(cli: Cli, finished: Path) -> None:
    arrays = finished / "arrays.safetensors"
    content = bytearray(arrays.read_bytes())
    content[-1] ^= 1
    arrays.write_bytes(content)
    assert "damaged" not in cli("ls").stdout  # the size is as it was
    assert "damaged" in cli("ls", "--verify").stdout
