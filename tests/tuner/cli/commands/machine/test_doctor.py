"""``tuner doctor``: every problem is reported with a fix, and none stops the other checks."""

import importlib.metadata
import os
import sqlite3
import tomllib
from pathlib import Path

import pytest

from tests.cli import ROOT, Answer, Cli
from tests.tuner.cli.commands.conftest import Shell
from tests.tuner.engines.relax import drivers
from tuner.cli.doctor import compilers, packages, resources, storage
from tuner.devices import gpus
from tuner.settings import Settings
from tuner.workers.confinement import memory

_V2 = "pni ssse3 sse4_1 sse4_2 popcnt cx16 lahf_lm"
_V3 = "avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"

# A module that is not an engine: its worker starts quickly and fails the check of the target.
BROKEN = {"TUNER_ENGINE": "tuner.engines.base"}


def check_of(answer: Answer, name: str) -> dict[str, object]:
    """Return one check of a report."""
    (check,) = (check for check in answer.json["checks"] if check["name"] == name)
    return dict(check)


@pytest.mark.tvm
def test_a_complete_machine_passes(tuned: Shell) -> None:
    """Every check is reported, and none is fatal."""
    answer = tuned("doctor", "--json")

    assert (answer.status, answer.json["ok"]) == (0, True)
    assert answer.err == ""
    target = check_of(answer, "target")
    assert target["state"] == "ok"
    assert '"kind":"llvm"' in str(target["details"])
    assert check_of(answer, "database")["details"] == {
        "url": tuned.url,
        "schema": "version_0_1",
        "records": 4,
        "tasks": 4,
        "jobs": 2,
    }
    assert {"python", "apache-tvm", "linker", "CUDA", "memory"} <= {
        check["name"] for check in answer.json["checks"]
    }


def test_all_problems_are_reported(tuned: Shell) -> None:
    """A broken database, engine and data directory do not stop the other checks."""
    (tuned.folder / "note.txt").write_text("text")

    answer = tuned(
        "doctor",
        **BROKEN,
        TUNER_DATABASE="postgresql://me:secret@127.0.0.1:1/x",
        TUNER_DATA_DIR=str(tuned.folder / "note.txt" / "data"),
    )

    lines = answer.out.splitlines()
    assert answer.status == 1
    assert (
        answer.err == "tuner: tuning cannot work here; missing: target, database, data directory\n"
    )
    assert any("missing  target" in line and "describe_target" in line for line in lines)
    assert any("missing  database" in line and "me:***@" in line for line in lines)
    assert any(line.startswith("ok       cores") for line in lines)
    assert any("--data-dir or TUNER_DATA_DIR" in line for line in lines)
    assert "secret" not in answer.out


def test_json_is_one_object_even_with_problems(tuned: Shell) -> None:
    """The exit status is 1 and the reason goes to stderr."""
    answer = tuned("doctor", "--json", **BROKEN)

    assert (answer.status, answer.json["ok"]) == (1, False)
    assert answer.err == "tuner: tuning cannot work here; missing: target\n"


def test_the_doctor_creates_nothing(shell: Shell) -> None:
    """A missing data directory and a missing database are fine and stay missing."""
    answer = shell("doctor", "--json", **BROKEN)

    assert check_of(answer, "database")["state"] == "ok"
    assert check_of(answer, "data directory")["state"] == "ok"
    assert not (shell.folder / "data").exists()


def test_a_missing_linker_is_essential(shell: Shell) -> None:
    """An empty PATH has neither compiler nor linker."""
    answer = shell("doctor", "--json", **BROKEN, PATH=str(shell.folder))

    for name in ("C compiler", "linker"):
        check = check_of(answer, name)
        assert (check["state"], check["essential"]) == ("missing", True)
        assert "apt install" in str(check["mend"])


@pytest.mark.parametrize(
    ("version", "required", "met"),
    [
        ("0.1.14.post1", "==0.1.14.post1", True),
        ("0.1.15", "==0.1.14.post1", False),
        ("3.2.0", ">=3.2,<4", True),
        ("3.10", ">=3.2,<4", True),
        ("4.0.0rc1", ">=3.2,<4", False),
        ("2.8.0+cpu", ">=2.8", True),
        ("2.7.1", ">=2.8", False),
        ("2.60.1", "==2.60.*", True),
        ("2.6.1", "==2.60.*", False),
    ],
)
def test_a_version_must_meet_every_clause(version: str, required: str, met: bool) -> None:
    """Numbers are compared as numbers, and pre-releases as such."""
    assert packages.satisfies(version, required) is met


def test_requirements_are_those_of_the_project() -> None:
    """The doctor and pyproject.toml require the same versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {
        name: {line.partition(";")[0].replace("[binary]", "") for line in lines}
        for name, lines in project["optional-dependencies"].items()
    }

    for package in packages.PACKAGES:
        if package.extra:
            assert package.name + package.required in extras[package.extra]
        else:
            assert package.name + package.required in project["dependencies"]


def test_a_known_bad_version_is_a_warning_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The warning names the version and how it fails."""
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.1.15")

    check = packages.check_package(packages.Package("apache-tvm-ffi", "==0.1.14.post1"))

    assert check.state == "warning"
    assert "0.1.15, not ==0.1.14.post1; 0.1.15 crashes in tvm.ir.save_json" in check.result
    assert check.fix == "pip install 'apache-tvm-ffi==0.1.14.post1'"


@pytest.mark.parametrize(("extra", "fatal"), [("", True), ("torch", False)])
def test_only_an_optional_package_may_be_missing(extra: str, fatal: bool) -> None:
    """Either way the fix installs it."""
    check = packages.check_package(packages.Package("no-such-package", ">=1", extra, "unused"))

    assert (check.state, check.fatal) == ("missing", fatal)
    assert check.fix.startswith("pip install ")


@pytest.mark.parametrize(
    ("driver", "state", "result"),
    [
        ("580.65.06", "ok", "NVIDIA H100, 9.0, 580.65.06"),
        ("550.54", "warning", "NVIDIA H100, 9.0, 550.54"),
        ("", "warning", "NVML lists no GPU"),
    ],
)
def test_cuda_needs_a_recent_driver_that_lists_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str, state: str, result: str
) -> None:
    """Any other state of a driver is a warning, because CUDA is optional."""
    monkeypatch.setattr(compilers, "_DRIVER", str(drivers.build(tmp_path) / "libcuda.so.1"))
    gpu = gpus.Gpu(0, "GPU-a", "NVIDIA H100", "9.0", driver, "13.0", None, None)
    monkeypatch.setattr(gpus, "list_gpus", lambda: (gpu,) if driver else ())

    check = compilers.check_cuda()

    assert check.state == state
    assert result in check.result
    assert not check.fatal


def test_the_driver_is_found_where_programs_find_it(tmp_path: Path) -> None:
    """Neither the cache of the system's libraries nor nvidia-smi knows it."""
    folder = str(drivers.build(tmp_path))

    answer = Cli(tmp_path)("doctor", "--json", **BROKEN, LD_LIBRARY_PATH=folder)

    check = check_of(answer, "CUDA")
    assert check["state"] == "ok"
    assert check["details"] == {"gpus": ["NVIDIA Test, 9.0, 580.65.06"]}


def test_a_machine_without_a_driver_can_still_tune(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA is optional; the fix says what to install."""
    monkeypatch.setattr(compilers, "_DRIVER", "libnone.so.1")

    check = compilers.check_cuda()

    assert (check.state, check.fatal) == ("missing", False)
    assert "install the NVIDIA driver" in check.fix


@pytest.mark.parametrize(
    ("url", "result"),
    [
        ("oracle://x", "use sqlite:// or postgresql://, not oracle://"),
        ("nonsense", "nonsense"),
        ("sqlite:///{folder}", "unable to open database file"),
        ("sqlite:///{folder}/other.db", "is a database of another program"),
        ("sqlite:///{folder}/text.db", "file is not a database"),
        ("sqlite:///{folder}/text.db/x.db", "is not a directory"),
    ],
)
def test_an_unusable_database_is_reported(shell: Shell, url: str, result: str) -> None:
    """The later checks still run."""
    (shell.folder / "text.db").write_text("text, not a database. " * 99)
    with sqlite3.connect(shell.folder / "other.db") as connection:
        connection.execute("CREATE TABLE others (x)")
    connection.close()

    answer = shell("doctor", "--json", "--database", url.format(folder=shell.folder), **BROKEN)

    check = check_of(answer, "database")
    assert (answer.status, check["state"]) == (1, "missing")
    assert result in str(check["found"])
    assert "--database or TUNER_DATABASE" in str(check["mend"])
    assert check_of(answer, "memory")["state"] in ("ok", "warning")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_data_directory_is_missing(tmp_path: Path) -> None:
    """The check writes a file to find out."""
    tmp_path.chmod(0o555)

    check = storage.check_data_dir(tmp_path)

    assert check.fatal
    assert "cannot be written" in check.result


def test_little_space_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is 2 GiB."""
    monkeypatch.setattr(storage, "_MIN_FREE_BYTES", 2**62)

    check = storage.check_data_dir(tmp_path / "not" / "there")

    assert (check.state, check.fatal) == ("warning", False)
    assert "will be created" in check.result


@pytest.mark.parametrize(
    ("text", "state"), [("max 100000", "ok"), ("50000 100000", "warning"), ("", "ok")]
)
def test_a_quota_on_cores_is_a_warning(tmp_path: Path, text: str, state: str) -> None:
    """A quota pauses a process in the middle of a run, which spoils its timing."""
    if text:
        (tmp_path / "cpu.max").write_text(f"{text}\n")

    assert resources.check_cores(tmp_path).state == state


@pytest.mark.parametrize(
    ("flags", "state", "result"),
    [
        (_V2, "warning", "x86-64-v2: kernels are right"),
        (f"{_V2} {_V3}", "ok", "x86-64-v3; products of bytes by pairs"),
        (f"{_V2} {_V3} avx_vnni", "ok", "x86-64-v3; products of bytes by VNNI"),
    ],
)
def test_instruction_sets_decide_on_speed(flags: str, state: str, result: str) -> None:
    """Below AVX2 kernels run, but nothing about their speed was measured."""
    check = resources.check_instructions("x86_64", {"flags": flags})

    assert (check.state, check.fatal) == (state, False)
    assert check.result.startswith(result)


def test_memory_is_that_of_the_container(tmp_path: Path) -> None:
    """A limit below the memory of the machine replaces it."""
    (tmp_path / "memory.max").write_text(f"{3 * 2**29}\n")
    (tmp_path / "memory.current").write_text(f"{2**29}\n")

    check = resources.check_memory(tmp_path)

    assert check.state == "warning"
    assert check.result == "1.0 GiB free of 1.5"


@pytest.mark.parametrize(
    ("together", "n_builders", "state"),
    [(False, 1000, "ok"), (True, 1, "ok"), (True, 1000, "warning")],
)
def test_processes_that_are_killed_together_share_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, together: bool, n_builders: int, state: str
) -> None:
    """A builder that could not import its compiler is a warning."""
    monkeypatch.setattr(resources, "kills_together", lambda: together)
    monkeypatch.setattr(memory, "kills_together", lambda: together)
    monkeypatch.setattr(memory, "usable_bytes", lambda: 64 * 2**30)

    settings = Settings("", tmp_path, "engine", n_builders, max_builders=n_builders)
    check = resources.check_kills(settings)

    assert check.state == state
    assert ("memory.oom.group" in check.result) is together
