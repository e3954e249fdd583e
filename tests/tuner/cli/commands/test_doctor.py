"""The doctor finds what is broken, says how to mend it, and is not stopped by it."""

import importlib.metadata
import os
import sqlite3
import tomllib
from pathlib import Path

import pytest

from tests.tuner.cli.commands.conftest import ROOT, Answer, Shell
from tuner.cli import doctor

# A module that is no engine: its worker answers at once, and is a broken one to find.
BROKEN = {"TUNER_ENGINE": "tuner.engines.base"}


def check_of(answer: Answer, name: str) -> dict[str, object]:
    """Return one check of a report."""
    (check,) = (check for check in answer.json["checks"] if check["name"] == name)
    return dict(check)


@pytest.mark.tvm
def test_a_sound_machine_passes(tuned: Shell) -> None:
    """The machine of these tests has all it takes; every check is reported."""
    answer = tuned("doctor", "--json")

    assert (answer.status, answer.json["ok"]) == (0, True)
    assert answer.err == ""
    target = check_of(answer, "target")
    assert target["state"] == "ok"
    assert '"kind":"llvm"' in str(target["details"])
    assert check_of(answer, "database")["details"] == {
        "url": tuned.url,
        "schema": "0004",
        "records": 4,
        "tasks": 4,
        "jobs": 2,
    }
    assert {"python", "apache-tvm", "linker", "CUDA", "memory"} <= {
        check["name"] for check in answer.json["checks"]
    }


def test_several_faults_are_all_reported(tuned: Shell) -> None:
    """A broken database, engine and data directory are lines; the rest is still checked."""
    (tuned.folder / "note.txt").write_text("I am a file")

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


def test_a_report_of_faults_is_one_json_object(tuned: Shell) -> None:
    """Exit status 1, the object on stdout, the reason on stderr."""
    answer = tuned("doctor", "--json", **BROKEN)

    assert (answer.status, answer.json["ok"]) == (1, False)
    assert answer.err == "tuner: tuning cannot work here; missing: target\n"


def test_nothing_is_created(shell: Shell) -> None:
    """A data directory and a database that are not there yet are no fault, and stay away."""
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
    ("version", "wanted", "met"),
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
def test_versions_are_compared_as_numbers(version: str, wanted: str, met: bool) -> None:
    """Every clause must hold."""
    assert doctor.satisfies(version, wanted) is met


def test_requirements_are_those_of_the_project() -> None:
    """The doctor asks for what pyproject.toml asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {
        name: {want.partition(";")[0].replace("[binary]", "") for want in wants}
        for name, wants in project["optional-dependencies"].items()
    }

    for package in doctor.PACKAGES:
        if package.extra:
            assert package.name + package.wanted in extras[package.extra]
        else:
            assert package.name + package.wanted in project["dependencies"]


def test_a_broken_pin_is_a_warning_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """What crashes in use is said before it does."""
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.1.15")

    check = doctor.check_package(doctor.Package("apache-tvm-ffi", "==0.1.14.post1"))

    assert check.state == "warning"
    assert "0.1.15, not ==0.1.14.post1; 0.1.15 crashes in tvm.ir.save_json" in check.found
    assert check.mend == "pip install 'apache-tvm-ffi==0.1.14.post1'"


@pytest.mark.parametrize(("extra", "fatal"), [("", True), ("torch", False)])
def test_only_an_optional_package_may_lack(extra: str, fatal: bool) -> None:
    """Either way it says how to install it."""
    check = doctor.check_package(doctor.Package("no-such-package", ">=1", extra, "reads nothing"))

    assert (check.state, check.fatal) == ("missing", fatal)
    assert check.mend.startswith("pip install ")


@pytest.mark.parametrize(
    ("script", "state", "found"),
    [
        ("echo 'NVIDIA H100, 9.0, 580.65.06'", "ok", "NVIDIA H100, 9.0, 580.65.06"),
        ("echo 'NVIDIA H100, 9.0, 550.54'", "warning", "NVIDIA H100, 9.0, 550.54"),
        ("echo 'cannot talk to the driver'; exit 9", "warning", "cannot talk to the driver"),
        ("true", "warning", "names no GPU"),
        (None, "warning", "nvidia-smi is not"),
    ],
)
def test_cuda_is_asked_through_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, state: str, found: str
) -> None:
    """The library must be there, the tool must name a GPU, and the driver must know CUDA 13."""
    if script is not None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(doctor, "find_library", lambda name: f"lib{name}.so.1")

    check = doctor.check_cuda()

    assert check.state == state
    assert found in check.found
    assert not check.fatal


def test_a_machine_without_a_driver_can_still_tune(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA is optional; the way to it is named."""
    monkeypatch.setattr(doctor, "find_library", lambda _: None)

    check = doctor.check_cuda()

    assert (check.state, check.fatal) == ("missing", False)
    assert "install the NVIDIA driver" in check.mend


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("oracle://x", "oracle is neither sqlite nor postgresql"),
        ("nonsense", "nonsense"),
        ("sqlite:///{folder}", "unable to open database file"),
        ("sqlite:///{folder}/other.db", "is a database of another program"),
        ("sqlite:///{folder}/text.db", "file is not a database"),
        ("sqlite:///{folder}/text.db/x.db", "is not a directory"),
    ],
)
def test_an_unusable_database_is_a_line(shell: Shell, url: str, found: str) -> None:
    """Whatever is wrong with it; the checks after it are still made."""
    (shell.folder / "text.db").write_text("I am a text file, and a long one at that. " * 99)
    with sqlite3.connect(shell.folder / "other.db") as connection:
        connection.execute("CREATE TABLE others (x)")
    connection.close()

    answer = shell("doctor", "--json", "--database", url.format(folder=shell.folder), **BROKEN)

    check = check_of(answer, "database")
    assert (answer.status, check["state"]) == (1, "missing")
    assert found in str(check["found"])
    assert "--database or TUNER_DATABASE" in str(check["mend"])
    assert check_of(answer, "memory")["state"] in ("ok", "warning")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_data_directory_is_missing(tmp_path: Path) -> None:
    """It is tried, not guessed."""
    tmp_path.chmod(0o555)

    check = doctor.check_data_dir(tmp_path)

    assert check.fatal
    assert "cannot be written" in check.found


def test_little_space_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below 2 GiB."""
    monkeypatch.setattr(doctor, "_LOW_BYTES", 2**62)

    check = doctor.check_data_dir(tmp_path / "not" / "there")

    assert (check.state, check.fatal) == ("warning", False)
    assert "not there yet" in check.found


@pytest.mark.parametrize(
    ("text", "state"), [("max 100000", "ok"), ("50000 100000", "warning"), ("", "ok")]
)
def test_a_quota_on_cores_is_a_warning(tmp_path: Path, text: str, state: str) -> None:
    """A process that is halted in the middle of a run cannot be timed."""
    if text:
        (tmp_path / "cpu.max").write_text(f"{text}\n")

    assert doctor.check_cores(tmp_path).state == state


def test_memory_is_that_of_the_container(tmp_path: Path) -> None:
    """A limit below what the machine has counts, less what is used of it."""
    (tmp_path / "memory.max").write_text(f"{3 * 2**29}\n")
    (tmp_path / "memory.current").write_text(f"{2**29}\n")

    check = doctor.check_memory(tmp_path)

    assert check.state == "warning"
    assert check.found == "1.0 GiB free of 1.5"
