import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from eigenscape.bounds import NetworkCertificate
from eigenscape.cli._subject import load_data, load_model
from eigenscape.cli.bound import find_prior, learning_rate, read_recipe
from eigenscape.errors import EigenscapeError, FileError, InvalidArgumentError
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from eigenscape.runs import read_run
from tests.cli.conftest import Cli

pytestmark = pytest.mark.usefixtures("no_pictures")

FAST = ("--epochs", "4", "--draws", "20", "--recipe", "fast.toml")


@pytest.fixture(autouse=True)
def fast(cli: Cli) -> None:
    """Write a recipe for 24 examples; the first weights of `files` classify some of them."""
    recipe(prior_source="other-data")


def recipe(**more: object) -> None:
    lines = {"batch_size": 10, **more}
    Path("fast.toml").write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in lines.items()))


def test_a_network_of_ones_own_gets_a_certificate(cli: Cli, files: tuple[Path, Path]) -> None:
    words = ("bound", "net.py:build", "--data", "net.py:data", "-c", files[1])
    result = cli(*words, "--prior", files[0], *FAST, "--out", "b")
    assert result.exit_code == 0, result.output
    found = read_run("b").record
    assert isinstance(found, NetworkCertificate)
    assert found.certificate.num_examples == 24
    assert found.posterior.prior_source == "other data"
    torch.testing.assert_close(
        found.posterior.prior_means.float(),
        torch.cat([load_file(files[0])[name].flatten() for name in found.posterior.names]).float(),
    )
    assert str(found.certificate.status) in result.stdout.replace("\n", " ")
    data = load_data("net.py:data")
    model = load_model("net.py:build", data)
    risk = EmpiricalRisk(model, CrossEntropy(), data)
    assert found.verify(risk).num_examples == 24


def test_the_folder_of_a_training_has_both_weights(cli: Cli) -> None:
    train = ("train", "one-hidden-4", "--data", "digits", "--epochs", "2", "--samples", "90")
    assert cli(*train, "--keep-epochs", "0", "--out", "t").exit_code == 0
    words = ("bound", "one-hidden-4", "--data", "digits", "--samples", "90", "-c", "t")
    recipe()
    result = cli(*words, *FAST, "--method", "base", "--out", "b")
    assert result.exit_code == 0, result.output
    assert "90" in result.stdout
    assert "not for any single one" in result.stdout
    recipe(noise="outputs")
    other = cli(*words, *FAST, "--method", "base", "--out", "c")
    assert other.exit_code == 0, other.output
    found = [read_run(folder).record.posterior for folder in "bc"]
    assert not torch.equal(found[0].means, found[1].means)  # other draws
    assert torch.equal(found[0].prior_means, found[1].prior_means)


def test_networks_can_be_judged_on_a_few_examples_each(cli: Cli, files: tuple[Path, Path]) -> None:
    words = ("bound", "net.py:build", "--data", "net.py:data", "-c", files[1], "--prior", files[0])
    recipe(prior_source="other-data", examples_per_draw=7)
    result = cli(*words, *FAST, "--out", "b")
    assert result.exit_code == 0, result.output
    assert "each on 7 random examples" in " ".join(result.stdout.split())
    assert read_run("b").record.examples_per_draw == 7


def test_an_interrupted_bound_is_resumed(
    cli: Cli, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from eigenscape import bounds

    words = ("bound", "net.py:build", "--data", "net.py:data", "-c", files[1])
    words = (*words, "--prior", files[0], *FAST)
    real = bounds.certify

    def stop(*args: object, **kwargs: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(bounds, "certify", stop)
    result = cli(*words, "--out", "b")
    assert result.exit_code == 130
    monkeypatch.setattr(bounds, "certify", real)
    again = cli(*words, "--out", "b")
    assert again.exit_code == 0, again.output
    assert "Resuming" in again.output
    assert cli(*words, "--out", "c").exit_code == 0
    one, two = (read_run(name).record for name in ("b", "c"))
    assert one.certificate.to_dict() == two.certificate.to_dict()


@pytest.mark.parametrize("case", ["trained", "none"])
def test_a_prior_from_before_training_is_asked_for(
    cli: Cli, files: tuple[Path, Path], case: str
) -> None:
    recipe()
    words = ("bound", "net.py:build", "--data", "net.py:data", "-c", files[1], *FAST)
    given = ("--prior", files[1]) if case == "trained" else ()
    result = cli(*words, *given, "--out", "b")
    assert result.exit_code == 2
    expected = (
        "equals the posterior's mean, the trained weights" if given else "before the first step"
    )
    assert expected in " ".join(result.stderr.split())
    assert not Path("b").exists()  # there is nothing to resume


def test_a_training_that_kept_no_first_weights_is_refused(tmp_path: Path) -> None:
    kept = tmp_path / "weights" / "seed-10"
    kept.mkdir(parents=True)
    (kept / "epoch-0003.safetensors").touch()
    with pytest.raises(InvalidArgumentError, match="--keep-epochs 0"):
        find_prior(None, tmp_path, None)
    for seed in (2, 10):
        folder = tmp_path / "weights" / f"seed-{seed}"
        folder.mkdir(exist_ok=True)
        (folder / "epoch-0000.safetensors").touch()
    assert find_prior(None, tmp_path, None).parent.name == "seed-2"
    assert find_prior(None, tmp_path, 10).parent.name == "seed-10"
    named = tmp_path / "other.pt"
    assert find_prior(named, tmp_path, None) == named


def test_few_steps_have_a_larger_learning_rate(cli: Cli, files: tuple[Path, Path]) -> None:
    assert learning_rate(2000, epochs=200, batch_size=128) == pytest.approx(30 / 3200)
    assert learning_rate(1437, epochs=20, batch_size=128) == 0.01
    assert learning_rate(60_000, epochs=200, batch_size=128) == 0.001
    words = ("bound", "net.py:build", "--data", "net.py:data", "-c", files[1], "--prior", files[0])
    words = (*words, *FAST)
    assert "learning rate: 0.01" in " ".join(cli(*words, "--out", "b").stdout.split())
    recipe(prior_source="other-data", learning_rate=0.02)
    given = cli(*words, "--out", "c")
    assert "learning rate: 0.02" in " ".join(given.stdout.split())
    one, two = (read_run(name).record.posterior.means for name in ("b", "c"))
    assert not torch.equal(one, two)


def test_a_network_that_is_no_chain_is_told_which_method_it_has(cli: Cli) -> None:
    train = ("train", "SmallConv-2-3", "--data", "digits", "--epochs", "1", "--samples", "40")
    assert cli(*train, "--keep-epochs", "0", "--out", "t").exit_code == 0
    words = ("bound", "SmallConv-2-3", "--data", "digits", "--samples", "40", "-c", "t")
    recipe()
    result = cli(*words, *FAST, "--method", "iter-m", "--out", "b")
    assert result.exit_code == 2
    assert "`--method iter`" in " ".join(result.stderr.split())


# --- the recipe file -----------------------------------------------------------------------------


def test_a_recipe_decides_over_the_certificate(cli: Cli, files: tuple[Path, Path]) -> None:
    words = ("bound", "net.py:build", "--data", "net.py:data", "-c", files[1], "--prior", files[0])
    chances = {"delta": 0.05, "delta_samples": 0.02, "precision": 50, "ceiling": 0.2}
    recipe(prior_source="other-data", **chances)
    assert cli(*words, *FAST, "--out", "b").exit_code == 0
    run = read_run("b")
    for name, value in chances.items():
        assert getattr(run.record.certificate, name) == value
        assert run.settings[name] == value
    run.record.certificate.verify_arithmetic()
    recipe(prior_source="other-data", **chances, drop=0.5)
    again = cli(*words, *FAST, "--out", "b")
    assert "holds a finished run" in " ".join(again.stderr.split())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("batch_sise = 10", "'batch_size'"),
        ("epochs = 10", "no setting of a recipe file"),
        ("batch_size = 10.5", "batch_size must be of type int; got 10.5"),
        ("tf32 = 1", "tf32 must be of type bool; got 1"),
        ("learning_rate = 'fast'", "learning_rate must be of type float; got 'fast'"),
        ("batch_size: 10", "must be a TOML file"),
    ],
)
def test_a_recipe_that_means_nothing_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    with pytest.raises(EigenscapeError, match=said):
        read_recipe(path)
    with pytest.raises(FileError, match="must be a TOML file"):
        read_recipe(tmp_path / "none.toml")


def test_an_option_that_moved_is_refused_with_its_new_place(cli: Cli) -> None:
    words = ("bound", "net.py:build", "--data", "net.py:data", "-c", "net.safetensors")
    for option in ("--lr", "--noise", "--split"):
        result = cli(*words, option, "0.1")
        assert result.exit_code == 2
        assert "`--lr` is `learning_rate` there" in " ".join(result.stderr.split())
    assert "--lr" not in cli("bound", "--help").stdout
