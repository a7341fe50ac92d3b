from pathlib import Path
from typing import Any

import pytest

from eigenscape.errors import DataError, InvalidArgumentError, UnknownNameError
from eigenscape.records import Progress
from eigenscape_papers import datasets as data
from eigenscape_papers.datasets._catalogue import (
    CIFAR10,
    CIFAR100,
    FASHION_MNIST,
    MNIST,
    SHAKESPEARE,
)

WITHOUT_FILES = ("digits", "gaussian", "clusters", "class-mixture")
WITH_FILES = ("mnist", "fashion-mnist", "cifar10", "cifar100", "characters")


def test_names() -> None:
    assert sorted(data.names()) == sorted(WITHOUT_FILES + WITH_FILES)


def agree(name: str, folder: str | None) -> None:
    info = data.describe(name)
    for split, count in (("train", info.num_train), ("test", info.num_test)):
        loaded = data.load(name, split=split, folder=folder)
        assert loaded.name == info.name == name
        assert loaded.split == split
        assert loaded.num_samples == count
        assert loaded.input_shape == info.input_shape
        assert loaded.num_classes == info.num_classes
        assert loaded.history


@pytest.mark.parametrize("name", WITHOUT_FILES)
def test_description_agrees_with_what_is_loaded(name: str) -> None:
    agree(name, None)
    assert not data.describe(name).needs_files


@pytest.mark.parametrize("name", WITH_FILES)
def test_description_agrees_with_the_real_files(name: str, real_folder: str) -> None:
    if any(status.state == "missing" for status in data.locate(name, real_folder)):
        pytest.skip(f"the folder in EIGENSCAPE_DATA has no {name}")
    agree(name, real_folder)


@pytest.mark.parametrize("name", WITH_FILES)
def test_descriptions_are_complete(name: str) -> None:
    info = data.describe(name)
    assert info.needs_files
    assert all((info.summary, info.citation, info.licence))


@pytest.mark.parametrize("name", WITH_FILES)
def test_missing_files_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"eigenscape data fetch {name}"):
        data.load(name, folder=tmp_path)
    statuses = data.locate(name, tmp_path)
    assert statuses
    assert {status.state for status in statuses} == {"missing"}
    for status in statuses:
        algorithm, _, digest = status.checksum.partition(":")
        assert len(digest) == {"md5": 32, "sha256": 64}[algorithm]


@pytest.mark.parametrize(
    "call", [data.load, data.describe, data.locate, data.fetch], ids=lambda f: f.__name__
)
def test_unknown_name_is_refused_with_near_matches(call: Any) -> None:
    with pytest.raises(UnknownNameError, match=r"'minst'.*Nearest: 'mnist'") as caught:
        call("minst")
    assert f"`{call.__name__}(name=...)`" in str(caught.value)


def test_unknown_option_is_refused_with_near_matches(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"`load\('gaussian', dimensions=.*'dimension'"):
        data.load("gaussian", dimensions=3)
    with pytest.raises(UnknownNameError, match=r"normalize=.*Nearest: 'normalise'"):
        data.load("mnist", folder=tmp_path, normalize="unit")
    with pytest.raises(UnknownNameError, match="no option"):
        data.load("mnist", folder=tmp_path, spec=None)


@pytest.mark.parametrize("name", ["digits", "mnist", "characters", "clusters"])
def test_unknown_split_is_refused(name: str) -> None:
    with pytest.raises(UnknownNameError, match=rf"load\('{name}', split=.*got 'valid'"):
        data.load(name, split="valid")


def test_sets_without_files(tmp_path: Path) -> None:
    assert data.locate("digits", tmp_path) == []
    with pytest.raises(InvalidArgumentError, match="needs no files"):
        data.fetch("digits")
    assert data.load("digits", folder=tmp_path).num_samples == 1437


def test_fetch_passes_everything_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    def spy(files: Any, folder: Any, **more: Any) -> Path:
        seen.update(more, name=files.name, folder=folder)
        return tmp_path

    def show(step: Progress) -> None:
        raise AssertionError

    monkeypatch.setattr("eigenscape_papers.datasets.registry.fetch_files", spy)
    assert data.fetch("mnist", tmp_path, mirrors=["https://a/"], progress=show) == tmp_path
    assert seen == {
        "name": "mnist",
        "folder": tmp_path,
        "mirrors": ["https://a/"],
        "progress": show,
    }


def test_published_mirrors_are_https() -> None:
    for files in (MNIST.files, FASHION_MNIST.files, CIFAR10.files, CIFAR100.files, SHAKESPEARE):
        assert files.mirrors
        assert all(m.startswith("https://") and m.endswith("/") for m in files.mirrors)
