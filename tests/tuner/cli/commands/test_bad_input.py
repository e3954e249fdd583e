"""Wrong requests: one line on stderr and exit status 2."""

import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx
import pytest
from onnx import helper

from records import database
from tests.cli import Answer, Cli
from tests.engines import toy
from tests.tuner.cli.commands.conftest import Shell
from tests.tuner.networks.models import LIGHT, model, relu_model
from tuner.library import manifest

SQUEEZENET = LIGHT / "light_squeezenet.onnx"
COMMANDS = ("tune", "tasks", "build", "bench", "table", "doctor", "records")


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """The command line with the real engine, whose workers take seconds to start."""
    return Cli(tmp_path, {"TUNER_N_BUILDERS": "1"})


@pytest.fixture
def toy_cli(tmp_path: Path) -> Shell:
    """A shell with an engine that needs no compiler, whose commands share a template of workers."""
    return Shell(tmp_path, {"TUNER_ENGINE": toy.NAME, "TUNER_N_BUILDERS": "1"})


def check_rejected(answer: Answer, *words: str, status: int = 2) -> None:
    """Check that stderr is one line with the words, and stdout empty."""
    assert answer.status == status, answer
    assert answer.out == ""
    assert "Traceback" not in answer.err
    complaints = [line for line in answer.err.splitlines() if line.startswith("tuner: ")]
    assert len(complaints) == 1, answer.err
    assert [line for line in answer.err.splitlines() if not line.startswith("note:")] == complaints
    for word in words:
        assert word in complaints[0]


def save(folder: Path, content: onnx.ModelProto) -> str:
    """Write a model file."""
    path = folder / "model.onnx"
    path.write_bytes(content.SerializeToString())
    return str(path)


def arguments_of(command: str, path: str) -> tuple[str, ...]:
    """Return the arguments of a command on a model with ``--json``."""
    out = ("-o", "out") if command == "build" else ()
    return (command, path, *out, "--json")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda _: None, ("no such file", "model.onnx")),
        (lambda path: path.touch(), ("is empty",)),
        (lambda path: path.mkdir(), ("is a directory",)),
        (lambda path: path.write_text("hello\n" * 50), ("text file",)),
        (lambda path: path.write_bytes(SQUEEZENET.read_bytes()[:5000]), ("cut off",)),
        (lambda path: path.write_bytes(os.urandom(4096)), ("not an ONNX model",)),
    ],
    ids=["missing", "empty", "directory", "text", "truncated", "noise"],
)
def test_bad_model_file(toy_cli: Shell, make: Callable[[Path], object], words: list[str]) -> None:
    """The error says what the file seems to be."""
    path = toy_cli.folder / "model.onnx"
    make(path)

    check_rejected(toy_cli("tasks", str(path), "--json"), *words)


@pytest.mark.parametrize("command", ["tune", "build"])
def test_bad_model_file_of_other_commands(toy_cli: Shell, command: str) -> None:
    """Every command that reads a model rejects it."""
    path = toy_cli.folder / "model.onnx"
    path.write_text("hello")

    check_rejected(toy_cli(*arguments_of(command, str(path))), "text file")


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("model.txt", ("no such file",)),
        ("zoo:resnet-81", ("resnet-18", "available")),
        ("zoo:mlp?batch=0", ("batch",)),
        ("zoo:mlp?size=3", ("no option",)),
        ("resnet-18", ("did you mean zoo:resnet-18",)),
        ("", ("the name of the model is empty",)),
    ],
)
def test_bad_reference(toy_cli: Shell, reference: str, words: Sequence[str]) -> None:
    """The error suggests valid names."""
    check_rejected(toy_cli("tasks", reference, "--json"), *words)


@pytest.mark.tvm
def test_unsupported_operator_is_named(cli: Cli) -> None:
    """The error contains operators that the importer does not support, also those of a vendor."""
    nodes = [
        helper.make_node("Det", ["data"], ["d"]),
        helper.make_node("Frobnicate", ["d"], ["y"], domain="com.acme"),
    ]
    path = save(cli.folder, model(nodes, {"data": (2, 3, 3)}, {"y": (2,)}))

    check_rejected(cli("tune", path, "--json"), "Det", "Frobnicate")


def test_dynamic_input_asks_for_its_shape(toy_cli: Shell) -> None:
    """The error names the input and the option to add."""
    path = save(toy_cli.folder, relu_model("batch", 4))

    check_rejected(toy_cli("tasks", path, "--json"), "--input: ", "for example: data=")
    assert toy_cli("tasks", path, "--json", "--input", "data=2,4").status == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("image=1,4", ("image", "data")),
        ("data=1,4,4", ("data", "2")),
        ("data=1,5", ("data",)),
        ("data=0,4", ("no elements",)),
        ("data=", ("--input: cannot read",)),
        ("data", ("--input: cannot read",)),
        ("data=1,x", ("--input: cannot read",)),
    ],
)
def test_wrong_input(toy_cli: Shell, text: str, words: Sequence[str]) -> None:
    """The error names the wrong name, rank or size of the input."""
    path = save(toy_cli.folder, relu_model("batch", 4))

    check_rejected(toy_cli("tasks", path, "--json", "--input", text), *words)


def test_unknown_target(toy_cli: Shell) -> None:
    """It is rejected before anything is measured."""
    answer = toy_cli("tune", "zoo:mlp", "--trials", "4", "--target", "nonsense", "--json")

    check_rejected(answer, "unknown target 'nonsense'")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--trials", "0"), ("--trials: must be at least 1, got 0",)),
        (("--trials", "-5"), ("--trials: ", "-5")),
        (("--trials", "many"), ("--trials", "integer")),
        (("--seconds", "0"), ("--seconds: must be above 0, got 0.0",)),
        (("--seconds", "-1"), ("--seconds: ", "-1")),
        (("--seconds", "nan"), ("--seconds: ", "nan")),
        (("--seconds", "inf"), ("--seconds: ", "inf")),
        (("--trials-per-round", "0"), ("--trials-per-round", "0")),
        (("--trials-per-round", "-1"), ("--trials-per-round", "-1")),
        (("--repeat", "2"), ("--repeat: must be at least 3, got 2",)),
        (("--number", "0"), ("--number: ", "0")),
        (("--min-repeat-ms", "-1"), ("--min-repeat-ms: ", "-1")),
        (("--cooldown-ms", "-1"), ("--cooldown-ms: ", "-1")),
        (("--run-timeout", "0"), ("--run-timeout: ", "0")),
        (("--build-timeout", "0"), ("--build-timeout", "0")),
        (("--seed", "-1"), ("--seed", "-1")),
        (("--seed", str(2**70)), ("--seed",)),
        (("--trials", str(2**70)), ("trials",)),
        (("--objective", "beauty"), ("--objective: ", "beauty", "weighted_sum")),
        (("--cost-model", "oracle"), ("--cost-model: ", "oracle", "xgb-ranking")),
        (("--stop-below", "0"), ("--stop-below: must be above 0",)),
        (("--require-ms", "0"), ("--require-ms: must be above 0",)),
        (("--baseline-ms", "a=x"), ("--baseline-ms: 'a' must be a valid number",)),
        (("--patience", "3"), ("--patience: ", "weighted_sum")),
        (("--colour", "red"), ("--colour",)),
        (("--trials",), ("--trials",)),
        (("surplus",), ("surplus",)),
    ],
)
def test_bad_option_of_tune(shell: Shell, options: Sequence[str], words: Sequence[str]) -> None:
    """The error contains the impossible value."""
    answer = shell("tune", "zoo:mlp", *options, "--json", TUNER_ENGINE=toy.NAME)

    check_rejected(answer, *words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tune",), ("MODEL",)),
        (("build", "zoo:mlp"), ("give --out",)),
        (("build", "-o", "out"), ("give a MODEL",)),
        (("build", "--reproduce", "gone.lib"), ("gone.lib does not exist",)),
        (("build", "--reproduce", "x", "zoo:mlp"), ("--reproduce", "MODEL")),
        (("build", "--reproduce", "x", "--strict"), ("--reproduce", "only --out")),
        (("bench",), ("LIBRARY",)),
        (("bench", "missing"), ("missing", "is not a library", "`tuner build` makes one")),
        (("bench", "x", "--against", "magic"), ("'--against': 'magic' is not one of",)),
        (("bench", "x", "--turns", "few"), ("'--turns': must be a valid integer",)),
        (("bench", "x", "--turns", "0"), ("--turns",)),
        (("worker", "--server", "http://a", "--name", "b c"), ("--name", "without spaces", "b c")),
        (("dance",), ("dance",)),
    ],
)
def test_bad_command(shell: Shell, arguments: Sequence[str], words: Sequence[str]) -> None:
    """The error names what is missing or unknown."""
    check_rejected(shell(*arguments), *words)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////proc/nowhere/tuner.db",
        "sqlite:////dev/null/tuner.db",
        "mysql://root@localhost/tuner",
        "no url at all",
        "postgresql://user:secret@127.0.0.1:9/none",
    ],
)
def test_unusable_database(shell: Shell, url: str) -> None:
    """The error names the database without its password."""
    answer = shell("tune", "zoo:mlp", "--trials", "4", "--database", url, "--json")

    check_rejected(answer, "cannot use")
    assert "secret" not in answer.err


def test_database_of_a_newer_schema(toy_cli: Shell) -> None:
    """It is rejected and stays unchanged."""
    toy_cli.data_dir.mkdir()
    database.open_database(toy_cli.url).dispose()
    path = toy_cli.data_dir / "tuner.db"
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()

    check_rejected(toy_cli("tune", "zoo:mlp", "--trials", "4", "--json"), "9999")
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == ("9999",)
    connection.close()


def test_file_that_is_not_a_database(toy_cli: Shell) -> None:
    """A text file is rejected and stays unchanged."""
    path = toy_cli.folder / "notes.db"
    path.write_text("some text\n" * 100)

    answer = toy_cli("tasks", "zoo:mlp", "--database", f"sqlite:///{path}", "--json")

    check_rejected(answer, "notes.db")
    assert path.read_text() == "some text\n" * 100


def test_data_directory_that_cannot_be_written(toy_cli: Shell) -> None:
    """A data directory below a file is rejected."""
    (toy_cli.folder / "file").touch()

    answer = toy_cli("tasks", "zoo:mlp", "--data-dir", "file/data", "--json")

    check_rejected(answer, "file/data")


@pytest.mark.parametrize(
    ("text", "words"),
    [("colour = 'red'", ("colour",)), ("= broken", ("config.toml",)), ("n_builders = 0", ("0",))],
)
def test_bad_config_file(shell: Shell, text: str, words: Sequence[str]) -> None:
    """The error names the setting or the file."""
    (shell.folder / "config.toml").write_text(text)

    check_rejected(shell("tasks", "zoo:mlp", "--json"), *words)


def test_engine_that_does_not_exist(toy_cli: Shell) -> None:
    """A module that cannot be imported is a wrong setting."""
    check_rejected(toy_cli("tasks", "zoo:mlp", "--json", TUNER_ENGINE="no.such.engine"), "no.such")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(shell: Shell, command: str) -> None:
    """The help page of each command has an example of it."""
    answer = shell(command, "--help", COLUMNS="120")

    assert answer.status == 0
    assert answer.err == ""
    assert "Usage:" in answer.out
    if command != "records":
        assert "Example" in answer.out
        assert f"tuner {command}" in answer.out.split("Example", 1)[1]


@pytest.mark.parametrize("command", ["best", "list", "export", "import"])
def test_help_of_records_has_an_example(shell: Shell, command: str) -> None:
    """The help page of each command on records has one, too."""
    answer = shell("records", command, "--help", COLUMNS="120")

    assert answer.status == 0
    assert f"tuner records {command}" in answer.out.split("Example", 1)[1]


def test_every_command_has_the_common_options(shell: Shell) -> None:
    """The short form of help works at every level, and -q leaves errors and results."""
    assert "Usage:" in shell("-h").out
    assert "Usage:" in shell("jobs", "-h").out
    page = shell("jobs", "ls", "-h", COLUMNS="120").out
    assert all(name in page for name in ("-h", "-q", "-v"))
    answer = shell("bench", "missing.lib", "-q", TUNER_SERVER="http://localhost:9")
    full = shell("bench", "missing.lib", TUNER_SERVER="http://localhost:9")
    assert ("note:" in answer.err, "note:" in full.err) == (False, True)
    assert answer.err.startswith("tuner: ")


def test_verbose_commands_print_logs(toy_cli: Shell) -> None:
    """As text, a line each."""
    answer = toy_cli("tune", "zoo:mlp", "--trials", "1", "-v")

    assert answer.status == 0
    assert " info    tuner." in answer.err


def test_help_of_the_program_names_every_command(toy_cli: Shell) -> None:
    """The help page of the program lists the commands."""
    answer = toy_cli("--help", COLUMNS="120")

    assert answer.status == 0
    for command in COMMANDS:
        assert command in answer.out


def test_json_is_one_object_on_stdout(toy_cli: Shell) -> None:
    """Progress and notes go to stderr."""
    tasks = toy_cli("tasks", "zoo:mlp", "--json").json
    tuned = toy_cli("tune", "zoo:mlp", "--trials", "40", "--json").json
    built = toy_cli("build", "zoo:mlp", "-o", "out", "--json").json
    benched = toy_cli(
        "bench", "out", "--against", "onnxruntime", "--model", "zoo:mlp", "--turns", "1", "--json"
    ).json

    assert len(tasks["tasks"]) == toy.N_TASKS
    assert tasks["kernel_calls"] == sum(task["weight"] for task in tasks["tasks"])
    assert tuned["measured_now"] == tuned["trials"] == 40
    assert tuned["total_latency_secs"] > 0
    assert built["tuned"] == toy.N_TASKS
    assert (built["fallbacks"], built["cached"]) == (0, False)
    assert built["estimated_secs"] == pytest.approx(tuned["total_latency_secs"])
    assert benched["agrees"] is True
    assert [output["absolute_error"] for output in benched["peers"][0]["outputs"]] == [0.0]
    assert benched["estimated_secs"] == built["estimated_secs"]


def test_unknown_numbers_are_null(toy_cli: Shell) -> None:
    """An unknown latency is null, as JSON has no infinity."""
    answer = toy_cli("tune", "zoo:mlp", "--trials", "1", "--json")

    def reject(name: str) -> None:
        raise AssertionError(name)

    value = json.loads(answer.out, parse_constant=reject)
    assert value["total_latency_secs"] is None
    assert [task["latency_secs"] for task in value["tasks"]].count(None) == toy.N_TASKS - 1


@pytest.fixture(scope="module")
def library_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library; tests copy it."""
    cli = Cli(tmp_path_factory.mktemp("built"), {"TUNER_ENGINE": toy.NAME, "TUNER_N_BUILDERS": "1"})
    assert cli("build", "zoo:mlp", "-o", "out").status == 0
    return cli.folder / "out"


@pytest.mark.parametrize("damage", ["altered", "truncated", "missing", "manifest"])
def test_bench_rejects_a_damaged_library(toy_cli: Shell, library_folder: Path, damage: str) -> None:
    """A damaged library is never loaded."""
    shutil.copytree(library_folder, toy_cli.folder / "out")
    library = toy_cli.folder / "out" / "lib.so"
    content = library.read_bytes()
    match damage:
        case "altered":
            library.write_bytes(content[:100] + b"\x00\x01" + content[102:])
        case "truncated":
            library.write_bytes(content[: len(content) // 2])
        case "missing":
            library.unlink()
        case "manifest":
            (toy_cli.folder / "out" / manifest.MANIFEST).write_text("{")

    check_rejected(toy_cli("bench", "out", "--json"), "out")


@pytest.mark.parametrize("out", ["file", "other"])
def test_build_never_replaces_other_files(toy_cli: Shell, out: str) -> None:
    """A file and a folder without a library stay unchanged."""
    (toy_cli.folder / "file").write_text("mine")
    (toy_cli.folder / "other").mkdir()
    (toy_cli.folder / "other" / "thesis.tex").write_text("mine")

    check_rejected(toy_cli("build", "zoo:mlp", "-o", out, "--json"), out)
    assert (toy_cli.folder / "file").read_text() == "mine"
    assert (toy_cli.folder / "other" / "thesis.tex").read_text() == "mine"


def test_output_below_a_file_is_one_line(toy_cli: Shell) -> None:
    """A folder that cannot be created is an error of one line."""
    (toy_cli.folder / "file").touch()

    answer = toy_cli("build", "zoo:mlp", "-o", "file/out", "--json")

    check_rejected(answer, "file/out", status=answer.status)
    assert answer.status in (1, 2)


def test_strict_build_rejects_a_fallback(toy_cli: Shell) -> None:
    """The error names a subgraph, and nothing is written."""
    answer = toy_cli("build", "zoo:mlp", "-o", "out", "--strict", "--json")

    check_rejected(answer, "4 of 4 subgraphs have no record", "heavy")
    assert not (toy_cli.folder / "out").exists()


@pytest.mark.slow("builds twice; the build cache has tests of its own")
def test_damaged_cached_library_is_built_again(
    toy_cli: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    """A damaged cache entry is dropped with a note."""
    toy_cli("build", "zoo:mlp", "-o", "out")
    (cached,) = (toy_cli.data_dir / "cache").glob("*/library/*/*")
    cached.write_bytes(b"damaged")

    answer = toy_cli("build", "zoo:mlp", "-o", "out", "--json")

    assert answer.json["cached"] is False
    assert "is damaged and is dropped" in caplog.text
    assert toy_cli("bench", "out", "--json").status == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_full_disk_keeps_the_old_library(toy_cli: Shell) -> None:
    """A library that does not fit is an error of one line."""
    disk = toy_cli.folder / "disk"
    disk.mkdir()
    options = ["-t", "tmpfs", "-o", "size=700k", "tmpfs", str(disk)]
    if subprocess.run(["mount", *options], check=False, capture_output=True).returncode:
        pytest.skip("this machine does not allow mounts")
    try:
        out = disk / "out"
        assert toy_cli("build", "zoo:mlp", "-o", str(out)).status == 0
        before = (out / "lib.so").read_bytes()
        answer = toy_cli("build", "zoo:mlp?seed=3", "-o", str(out), "--json")
        check_rejected(answer, "No space left", status=1)
        assert (out / "lib.so").read_bytes() == before
        manifest.verify(out, manifest.read(out))
        assert [path.name for path in disk.iterdir()] == ["out"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_full_disk_under_the_data_directory_is_one_line(toy_cli: Shell) -> None:
    """A model that cannot be stored is an error of one line."""
    toy_cli.data_dir.mkdir()
    options = ["-t", "tmpfs", "-o", "size=560k,mode=700", "tmpfs", str(toy_cli.data_dir)]
    if subprocess.run(["mount", *options], check=False, capture_output=True).returncode:
        pytest.skip("this machine does not allow mounts")
    try:
        answer = toy_cli("tasks", "zoo:mlp", "--json")
        check_rejected(answer, status=1)
    finally:
        subprocess.run(["umount", str(toy_cli.data_dir)], check=True)
