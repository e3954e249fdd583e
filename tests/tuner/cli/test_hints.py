"""Commands that reports propose run as they are printed."""

import shlex

import pytest

from tests.tuner.cli.commands.conftest import Shell
from tests.tuner.cli.commands.test_bad_input import toy_cli
from tests.tuner.networks.models import relu_model
from tuner.cli import connection, hints
from tuner.cli.commands.tune import name_of

__all__ = ["toy_cli"]


def _hint(text: str) -> list[str]:
    """Return the arguments of the last command between backquotes."""
    return shlex.split(text.rpartition("`tuner ")[2].partition("`")[0])


def test_every_hint_runs(toy_cli: Shell) -> None:
    """With the options of the command that printed it: a shape, another data directory, a seed."""
    model = "models/Bob's net v1.1.onnx"
    (toy_cli.folder / "models").mkdir()
    (toy_cli.folder / model).write_bytes(relu_model("batch", 4).SerializeToString())
    options = ("--data-dir", "my data", "--random-weights", "3", "--input", "data=2,4")

    built = toy_cli("build", model, "-o", "out dir", *options)
    checked = toy_cli("check", model, *options)
    tuned = toy_cli(*_hint(checked.out), "--trials", "30")
    build = shlex.split(tuned.err.rpartition("next: tuner ")[2].strip())

    assert (built.status, checked.status, tuned.status) == (0, 3, 0), built.err + tuned.err
    assert sorted(_hint(checked.out)) == sorted(_hint(built.out))
    assert toy_cli(*build).status == 0
    assert toy_cli("check", "Bob's net v1.1.lib").status == 0
    assert toy_cli("records", "export", "log", "--data-dir", "my data").status == 0
    imported = toy_cli("records", "import", "log", "--data-dir", "other")
    assert _hint(imported.err) == ["records", "verify", "--data-dir", "other"]
    claimed = toy_cli("check", model, *options[2:], "--data-dir", "other")
    verified = toy_cli(*_hint(claimed.out))
    assert (claimed.status, verified.status) == (3, 0), claimed.out + verified.err


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("zoo:squeezenet_v1.1?batch=2", "squeezenet_v1.1"),
        ("models/squeezenet_v1.1.onnx", "squeezenet_v1.1"),
        ("NET.PT2", "NET"),
        ("net v1.1", "net v1.1"),
    ],
)
def test_a_library_is_named_like_its_model(model: str, name: str) -> None:
    """The format is left out; a dot of the name stays."""
    assert name_of(model) == name


@pytest.mark.parametrize(("is_local", "words"), [(False, "--server http://a:1 "), (True, "")])
def test_commands_of_a_server_name_it(
    is_local: bool, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that work on this machine alone do not."""
    monkeypatch.setattr(connection, "chosen", lambda: connection.Connection("http://a:1", None))

    assert hints.command("jobs ls", options={}, is_local=is_local) == f"tuner {words}jobs ls"
