"""What is plugged in from above: named by the front door, or found among installed packages."""

import math
import sys
from importlib.metadata import EntryPoint
from typing import Any

import pytest

import eigenscape
from eigenscape import plugins
from eigenscape.errors import EigenscapeError


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[EntryPoint, ...]]:
    """Entry points that installed packages might have, by group."""
    groups: dict[str, tuple[EntryPoint, ...]] = {}
    monkeypatch.setattr(plugins, "entry_points", lambda group: groups.get(group, ()))
    plugins.record_packages.cache_clear()
    yield groups
    plugins.record_packages.cache_clear()


@pytest.fixture
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_named", {})


def point(name: str, value: str, group: str) -> EntryPoint:
    return EntryPoint(name, value, f"eigenscape.{group}")


@pytest.mark.usefixtures("unnamed")
def test_what_nobody_named_is_not_there() -> None:
    with pytest.raises(EigenscapeError, match="no renderer here; `import eigenscape`"):
        plugins.renderer()
    with pytest.raises(EigenscapeError, match="no run_keeper here"):
        plugins.run_keeper()


@pytest.mark.usefixtures("unnamed")
def test_what_is_named_is_loaded_when_it_is_asked_for() -> None:
    loaded: list[str] = []

    def load(what: str) -> Any:
        return lambda: loaded.append(what) or what

    plugins.use(renderer=load("a renderer"), run_keeper=load("a keeper"))
    assert loaded == []
    assert plugins.renderer() == "a renderer"
    assert loaded == ["a renderer"]
    assert plugins.run_keeper() == "a keeper"
    plugins.use(renderer=load("another"), run_keeper=load("a keeper"))
    assert plugins.renderer() == "another"


def test_the_front_door_names_what_draws_and_what_keeps() -> None:
    assert eigenscape.__version__ == plugins.__version__
    assert all(callable(getattr(plugins.renderer(), name)) for name in ("draw", "write_files"))
    assert callable(plugins.run_keeper().save_run)


def test_packages_with_records_give_their_names(
    points: dict[str, tuple[EntryPoint, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plugins.record_packages() == {}
    plugins.record_packages.cache_clear()
    points["eigenscape.record_names"] = (point("mine", "tests.test_plugins:names", "record_names"),)
    module = type(sys)("tests.test_plugins")
    module.names = lambda: {"Old": "mine.room:Old"}
    monkeypatch.setitem(sys.modules, "tests.test_plugins", module)
    assert plugins.record_packages()["mine"]() == {"Old": "mine.room:Old"}
    points.clear()
    assert "mine" in plugins.record_packages()  # looked for once


def test_verbs_come_by_name_and_are_not_loaded(points: dict[str, tuple[EntryPoint, ...]]) -> None:
    points["eigenscape.verbs"] = tuple(
        point(name, "nowhere.to.be:found", "verbs") for name in ("train", "data", "models")
    )
    assert [verb.name for verb in plugins.verbs()] == ["data", "models", "train"]
    with pytest.raises(ModuleNotFoundError):
        plugins.verbs()[0].load()


def test_catalogues_are_those_of_their_kind(points: dict[str, tuple[EntryPoint, ...]]) -> None:
    points["eigenscape.data"] = (point("a", "math:pi", "data"),)
    points["eigenscape.models"] = (point("b", "math:e", "models"), point("c", "math:tau", "models"))
    assert plugins.catalogues("data") == (math.pi,)
    assert plugins.catalogues("models") == (math.e, math.tau)
    assert plugins.catalogues("else") == ()
