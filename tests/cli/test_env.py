import json
import platform
from pathlib import Path

import pytest
import torch

from tests.cli.conftest import Cli


def test_versions_devices_and_data_are_shown(cli: Cli, tmp_path: Path) -> None:
    result = cli("env", "--data-dir", tmp_path)
    assert result.exit_code == 0
    for words in (torch.__version__, platform.python_version(), "cpu", "digits", str(tmp_path)):
        assert words in result.stdout


def test_json_is_plain(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EIGENSCAPE_DATA", str(tmp_path / "mine"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = json.loads(cli("env", "--json").stdout)
    assert found["data folder"] == str(tmp_path / "mine")
    assert found["data sets"]["mnist"] == "missing"
    assert found["data sets"]["digits"] == "not needed"
    assert found["threads"] == torch.get_num_threads()
