import dataclasses
import json
import os
import pickle
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from eigenscape import analyses
from eigenscape.records import Status
from eigenscape.runs import read_run
from tests.cli.conftest import NET, QUICK, Cli

pytestmark = pytest.mark.usefixtures("no_pictures")


def small_net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def write(text: str) -> None:
    Path("other.py").write_text(f"import torch\nfrom torch import nn\n{text}\n")


def refused(cli: Cli, *words: object) -> str:
    """Return what a command that must be refused says, and check that it left nothing behind."""
    before = sorted(Path.cwd().rglob("*"))
    result = cli(*words)
    assert result.exit_code == 2, result.output
    caches = [p for p in Path.cwd().rglob("*") if "__pycache__" in p.parts]
    assert sorted(p for p in Path.cwd().rglob("*") if p not in caches) == before
    return str(result.stderr)


def tiny(*words: object) -> tuple[object, ...]:
    return ("analyze", *words, "--budget", "quick")


# --- a whole analysis ----------------------------------------------------------------------------


def test_an_analysis_says_what_it_found(printed: str) -> None:
    for words in (
        "net.py:build, Sequential with 26 parameters",
        "cross-entropy (guessed: the targets are whole numbers",
        "Plan, budget 'quick'",
        "Predicted:",
        "Findings",
        "- The loss is",
        "Key numbers",
        "Report: runs/one/report.html",
    ):
        assert words in printed
    order = [printed.index(words) for words in ("model:", "Plan", "Findings", "Report:")]
    assert order == sorted(order)


def test_a_run_notes_its_command_and_has_no_checkpoint_left(finished: Path) -> None:
    run = read_run(finished)
    assert run.title == "net.py:build on net.py:data"
    assert run.settings["command"] == shlex.join(
        ["eigenscape", *QUICK, "--seed", "3", "--out", "runs/one"]
    )
    assert not (finished / "checkpoint").exists()


def test_built_in_names_take_their_sizes_from_the_data(cli: Cli) -> None:
    words = tiny("one-hidden-2", "--data", "digits", "--samples", 30, "--split", "test")
    result = cli(*words, "--quiet")
    assert result.exit_code == 0, result.output
    folder = Path(result.stdout.strip())
    assert re.fullmatch(r"runs/one-hidden-2-digits-\d{8}-\d{6}", folder.as_posix())
    record = read_run(folder).record
    assert record.point.num_parameters == 64 * 2 + 2 * 10
    assert record.point.num_samples == 30
    assert "test" in record.description["data"]
    assert "30 of 360" in record.description["history of the data"]


def test_built_in_networks_take_sizes_from_users_data(cli: Cli) -> None:
    result = cli(*tiny("linear", "--data", "net.py:loader", "--samples", 10, "--out", "r", "-q"))
    assert result.exit_code == 0, result.output
    assert read_run("r").record.point.num_parameters == 3 * 2 + 2
    assert read_run("r").record.point.num_samples == 10


def test_parameters_can_be_chosen(cli: Cli) -> None:
    assert cli(*QUICK, "--params", "0.*", "--out", "r").exit_code == 0
    assert read_run("r").record.point.num_parameters == 16
    assert "'0.weight'" in refused(cli, *QUICK, "--params", "0.wieght", "--out", "s")


def test_not_converged_gives_1_and_says_why(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    real = analyses.analyze

    def poor(*args: Any, **options: Any) -> analyses.Analysis:
        found = real(*args, **options)
        return dataclasses.replace(found, status=Status(False, "Raise `max_products`."))

    monkeypatch.setattr(analyses, "analyze", poor)
    result = cli(*QUICK, "--out", "r")
    assert result.exit_code == 1
    assert "Not everything converged. Raise `max_products`." in result.stderr
    assert not read_run("r").record.status


def test_quiet_prints_the_folder_alone(cli: Cli) -> None:
    result = cli(*QUICK, "--out", "r", "--quiet")
    assert (result.stdout, result.stderr) == ("r\n", "")


def test_long_plans_are_confirmed_only_on_a_terminal(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("eigenscape.cli._analysis._ASK_ABOVE_SECONDS", 0.0)
    monkeypatch.setattr("typer.confirm", lambda text, default: bool(asked.append(text)))
    assert cli(*QUICK, "--out", "piped", "-q").exit_code == 0
    monkeypatch.setattr("eigenscape.cli._analysis.sys", type("T", (), {"stdin": _Terminal()}))
    refusal = cli(*QUICK, "--out", "asked")
    assert refusal.exit_code == 0
    assert "Nothing was started" in refusal.stdout
    assert not Path("asked").exists()
    assert len(asked) == 1
    assert cli(*QUICK, "--out", "yes", "--yes", "-q").exit_code == 0
    assert len(asked) == 1


class _Terminal:
    def isatty(self) -> bool:
        return True


# --- interrupted, resumed, replaced --------------------------------------------------------------


def interrupt(monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """Let Ctrl-C come when a stage of the analysis has begun."""
    from eigenscape.analyses.whole import _stages

    real = _stages.StageStore.run

    def run(self: Any, name: str, compute: Any) -> Any:
        if name == at:
            raise KeyboardInterrupt
        return real(self, name, compute)

    monkeypatch.setattr(_stages.StageStore, "run", run)


def test_interrupted_runs_say_how_to_go_on_and_do(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        interrupt(patch, "residual")
        result = cli(*QUICK, "--seed", 5)
    assert result.exit_code == 130
    command = re.search(r"\n  (eigenscape analyze .*)\n", result.stderr)
    assert command is not None
    words = shlex.split(command[1])[1:]
    folder = Path(words[words.index("--out") + 1])
    assert words == [*QUICK, "--seed", "5", "--out", str(folder)]
    assert "unfinished" in cli("ls").stdout
    again = cli(*words)
    assert again.exit_code == 0
    assert f"Resuming the unfinished run in {folder}" in again.stdout
    assert cli(*QUICK, "--seed", 5, "--out", "straight").exit_code == 0
    resumed, straight = read_run(folder).record, read_run("straight").record
    assert torch.equal(resumed.hessian.largest.values, straight.hessian.largest.values)


def test_ctrl_c_before_the_start_leaves_nothing(cli: Cli) -> None:
    # A test that runs in the background of a shell inherits that Ctrl-C is ignored.
    heard = "signal.signal(signal.SIGINT, signal.default_int_handler)"
    stop = f"import os, signal\n\n{heard}\n\n\ndef data():\n"
    Path("stop.py").write_text(stop + "    os.kill(os.getpid(), signal.SIGINT)\n")
    words = tiny("net.py:build", "--data", "stop.py:data", "--out", "r")
    command = [sys.executable, "-m", "eigenscape", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 130
    assert "Interrupted before anything was computed" in done.stderr
    assert "-m eigenscape analyze net.py:build --data stop.py:data" in done.stderr
    assert "Traceback" not in done.stderr
    assert not Path("r").exists()


def test_other_settings_do_not_resume(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        interrupt(patch, "layers")
        assert cli(*QUICK, "--out", "r").exit_code == 130
    text = refused(cli, *QUICK, "--out", "r", "--seed", 1)
    assert "seed: 0, now 1" in text
    assert f"  {shlex.join(['eigenscape', *QUICK, '--out', 'r'])}" in text
    result = cli(*QUICK, "--out", "r", "--seed", 1, "--overwrite")
    assert result.exit_code == 0
    assert "Resuming" not in result.stdout
    assert read_run("r").seed == 1


def test_finished_runs_and_foreign_folders_are_left_alone(cli: Cli, finished: Path) -> None:
    assert "--overwrite" in refused(cli, *QUICK, "--out", finished)
    mine = Path("mine")
    mine.mkdir()
    (mine / "thesis.tex").write_text("precious")
    assert "other files ('thesis.tex')" in refused(cli, *QUICK, "--out", mine)
    assert "other files" in refused(cli, *QUICK, "--out", mine, "--overwrite")
    assert "it is a file" in refused(cli, *QUICK, "--out", "net.py")
    assert cli(*QUICK, "--out", finished, "--overwrite", "--seed", 9).exit_code == 0
    assert read_run(finished).seed == 9


def test_a_folder_called_checkpoint_of_the_users_own_is_left_alone(
    cli: Cli, finished: Path
) -> None:
    for folder in (Path("mine"), finished):
        (folder / "checkpoint").mkdir(parents=True)
        (folder / "checkpoint" / "model.bin").write_text("precious")
        for extra in ((), ("--overwrite",)):
            assert "'checkpoint'" in refused(cli, *QUICK, "--out", folder, *extra)


def test_an_analysis_does_not_replace_a_training(cli: Cli) -> None:
    words = ("train", "net.py:build", "--data", "net.py:data", "--epochs", 1, "--out", "t", "-q")
    assert cli(*words).exit_code == 0
    text = refused(cli, *QUICK, "--checkpoint", "t", "--out", "t", "--overwrite")
    assert "would replace a run of `eigenscape train`" in text


# --- the user's own code -------------------------------------------------------------------------


def test_users_errors_are_shown_from_their_first_line_on(cli: Cli) -> None:
    write("def build():\n    return helper()\n\ndef helper():\n    return 1 / 0")
    text = refused(cli, *tiny("other.py:build", "--data", "net.py:data"))
    assert "`other.py:build` failed" in text
    assert "return 1 / 0" in text
    assert "ZeroDivisionError: division by zero" in text
    assert "_user_code.py" not in text
    assert "typer" not in text


def test_a_model_that_fails_on_a_batch_is_shown_where(cli: Cli) -> None:
    write(
        "class Net(nn.Linear):\n    def forward(self, x):\n        return x.no_such_thing()\n\n"
        "def build():\n    return Net(3, 2)"
    )
    text = refused(cli, *tiny("other.py:build", "--data", "net.py:data"))
    assert "cannot run a batch; it was called with (24, 3)" in text
    assert "return x.no_such_thing()" in text
    assert "functional_call" not in text


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def build(:", "SyntaxError"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("import sys\nsys.exit(3)", "sys.exit(3)"),
        ("def build(width):\n    return nn.Linear(3, width)", "needs width"),
        ("def build():\n    nn.Linear(3, 2)", "got NoneType. Did it forget to `return`?"),
        ("def build():\n    return lambda x: x", "must return an nn.Module; got function"),
        ("def bild():\n    return nn.Linear(3, 2)", "Nearest: 'bild'"),
        ("build = 3", "must be a function; got int"),
        (
            "def build():\n    return nn.Linear(5, 2)",
            "cannot run a batch; it was called with (24, 3)",
        ),
        ("def build():\n    return nn.Flatten()", "no parameters"),
    ],
)
def test_models_that_cannot_be_used_are_refused(cli: Cli, source: str, words: str) -> None:
    write(source)
    assert words in refused(cli, *tiny("other.py:build", "--data", "net.py:data"))


def test_places_that_are_not_there_are_refused(cli: Cli) -> None:
    data = ("--data", "net.py:data")
    assert "Nearest: 'net.py'" in refused(cli, *tiny("nets.py:build", *data))
    assert "It has build, data, loader" in refused(cli, *tiny("net.py", *data))
    assert "no 'no_such_package'" in refused(cli, *tiny("no_such_package.nets:build", *data))


def test_a_model_that_gives_nan_is_refused(cli: Cli) -> None:
    fill = "net.bias.data.fill_(torch.nan)"
    write(f"def build():\n    net = nn.Linear(3, 2)\n    {fill}\n    return net")
    assert "nan" in refused(cli, *tiny("other.py:build", "--data", "net.py:data"))


def test_modules_and_siblings_are_found_and_leave_no_trace(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "nets"
    package.mkdir()
    (package / "cli_test_helper.py").write_text("WIDTH = 5\n")
    (package / "json.py").write_text(
        "from torch import nn\n\n\ndef build():\n    from cli_test_helper import WIDTH\n"
        "    return nn.Sequential(nn.Linear(3, WIDTH), nn.Linear(WIDTH, 2))\n"
    )
    (package / "__init__.py").write_text("")
    before = list(sys.path)
    by_file = cli(*tiny("nets/json.py:build", "--data", "net.py:data", "--out", "a", "-q"))
    assert by_file.exit_code == 0, by_file.output
    assert read_run("a").record.point.num_parameters == 20 + 12
    assert sys.path == before
    assert sys.modules["json"] is json
    (package / "wide.py").write_text("from torch import nn\n\nnet = nn.Linear(3, 2)\n")
    by_name = cli(*tiny("nets.wide:net", "--data", "net.py:data", "--out", "b", "-q"))
    assert by_name.exit_code == 0, by_name.output


# --- data and loss -------------------------------------------------------------------------------

X = "x = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))"


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x[:0], x[:0]))", "no batch"),
        ("(b for b in [(x, x)])", "walked only once"),
        ("3", "got int"),
        ("x", "have no targets"),
        ("(x, x[:, :1])", "the output is (24, 2)"),
        ("(x, x[:, :2] > 0)", "targets are torch.bool"),
        ("{}['nothing']", "KeyError: 'nothing'"),
    ],
)
def test_data_that_cannot_be_used_are_refused(cli: Cli, returned: str, words: str) -> None:
    write(f"def data():\n    {X}\n    return {returned}")
    assert words in refused(cli, *tiny("net.py:build", "--data", "other.py:data"))


def test_a_shuffling_loader_is_read_once_and_one_that_drops_is_refused(cli: Cli) -> None:
    loader = "torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())"
    write(
        f"def data():\n    {X}\n    return {loader}, 8, shuffle=True)\n\n"
        f"def drops():\n    {X}\n    return {loader}, 7, shuffle=True, drop_last=True)"
    )
    words = ("net.py:build", "--data")
    assert cli(*tiny(*words, "other.py:data", "--out", "r", "-q")).exit_code == 0
    assert cli(*QUICK, "--out", "s", "-q").exit_code == 0
    shuffled, whole = read_run("r").record, read_run("s").record
    torch.testing.assert_close(shuffled.hessian.largest.values, whole.hessian.largest.values)
    assert "drop_last" in refused(cli, *tiny(*words, "other.py:drops"))


def test_real_targets_shaped_like_the_output_mean_squared_error(cli: Cli) -> None:
    write(f"def data():\n    {X}\n    return x, x[:, :2]")
    words = tiny("net.py:build", "--data", "other.py:data")
    result = cli(*words, "--out", "r")
    assert "squared-error (guessed: the targets are real numbers" in result.stdout
    said = cli(*words, "--loss", "squared-error", "--out", "s")
    assert "guessed" not in said.stdout
    assert read_run("r").record.point.loss == read_run("s").record.point.loss


def test_too_many_samples_are_refused(cli: Cli) -> None:
    assert "has 24" in refused(cli, *QUICK, "--samples", 25)
    assert "`--samples 25`: --data has 24" in refused(
        cli, *tiny("net.py:build", "--data", "net.py:loader", "--samples", 25)
    )


def test_devices_and_precision(cli: Cli) -> None:
    assert "must be auto, cpu, cuda" in refused(cli, *QUICK, "--device", "tpu")
    assert "--device cpu" in refused(cli, *QUICK, "--device", "cuda:77")
    result = cli(*QUICK, "--dtype", "float32", "--device", "cpu", "--out", "r")
    assert "cpu, float32" in result.stdout


# --- weights -------------------------------------------------------------------------------------


@pytest.fixture
def state(cli: Cli) -> dict[str, torch.Tensor]:
    torch.manual_seed(11)
    return dict(small_net().state_dict())


def loss_with(cli: Cli, path: str) -> tuple[float, str]:
    result = cli(*QUICK, "--checkpoint", path, "--out", f"run-{path}")
    assert result.exit_code == 0, result.output
    return read_run(f"run-{path}").record.point.loss, result.stdout


def test_weights_are_unwrapped_and_prefixes_taken_off(
    cli: Cli, state: dict[str, torch.Tensor]
) -> None:
    save_file(state, "net.safetensors")
    expected, _ = loss_with(cli, "net.safetensors")
    assert expected != pytest.approx(read_loss(cli))
    prefixed = {f"_orig_mod.module.{name}": tensor for name, tensor in state.items()}
    torch.save({"model_state_dict": prefixed, "epoch": 3}, "net.pt")
    found, text = loss_with(cli, "net.pt")
    assert found == expected
    assert "under the key 'model_state_dict'" in text
    assert "The prefix '_orig_mod.module.' was taken off" in text


def read_loss(cli: Cli) -> float:
    assert cli(*QUICK, "--out", "plain", "-q").exit_code == 0
    return float(read_run("plain").record.point.loss)


def test_weights_that_do_not_fit_are_refused_with_near_names(
    cli: Cli, state: dict[str, torch.Tensor]
) -> None:
    renamed = {name.replace("2.", "3."): tensor for name, tensor in state.items()}
    save_file(renamed, "net.safetensors")
    text = refused(cli, *QUICK, "-c", "net.safetensors")
    assert "2 the model has and the file lacks: '2.weight', '2.bias' (Nearest: '3.weight'" in text
    save_file(state | {"0.bias": torch.zeros(7)}, "net.safetensors")
    assert "'0.bias' is (7,) in the file and (4,)" in refused(cli, *QUICK, "-c", "net.safetensors")


class Malicious:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch pwned",)


@pytest.mark.parametrize("wrapped", [False, True])
def test_pickles_with_code_are_refused_and_not_run(
    cli: Cli, state: dict[str, torch.Tensor], wrapped: bool
) -> None:
    torch.save({"state_dict": state, "extra": Malicious()} if wrapped else Malicious(), "net.pt")
    text = refused(cli, *QUICK, "--checkpoint", "net.pt")
    assert "(posix.system)" in text
    assert "nothing was run" in text
    assert "state_dict()" in text
    assert not Path("pwned").exists()
    Path("plain.pt").write_bytes(pickle.dumps(Malicious()))
    refused(cli, *QUICK, "--checkpoint", "plain.pt")
    assert not Path("pwned").exists()


def test_a_pickled_model_is_refused_with_advice(cli: Cli) -> None:
    torch.save(small_net(), "net.pt")
    assert "torch.nn.modules" in refused(cli, *QUICK, "--checkpoint", "net.pt")


def test_files_that_hold_no_weights_are_refused(cli: Cli, state: dict[str, torch.Tensor]) -> None:
    Path("net.safetensors").write_bytes(b"nothing")
    Path("net.pth").write_bytes(b"nothing")
    Path("net.h5").write_bytes(b"nothing")
    Path("empty").mkdir()
    torch.save([1, 2], "list.pt")
    torch.save({"epoch": 3}, "numbers.pt")
    for name, words in {
        "net.safetensors": "no complete safetensors file",
        "net.pth": "`--checkpoint net.pth`",
        "net.h5": "must end in .safetensors",
        "nets.pth": "Nearest: 'net.pth'",
        "empty": "weights/seed-0",
        "list.pt": "got list",
        "numbers.pt": "'epoch'",
    }.items():
        assert words in refused(cli, *QUICK, "--checkpoint", name), name
    save_file(state, "good.safetensors")
    text = refused(cli, *QUICK, "--checkpoint", "good.safetensors", "--weights-seed", 3)
    assert "is for the folder of a training run" in text
    assert "needs `--checkpoint`" in refused(cli, *QUICK, "--weights-seed", 3)


def test_net_of_the_tests_is_that_of_the_weights() -> None:
    assert repr(small_net()) == repr(_built())


def _built() -> nn.Module:
    names: dict[str, Any] = {}
    exec(NET, names)
    net = names["build"]()
    assert isinstance(net, nn.Module)
    return net
