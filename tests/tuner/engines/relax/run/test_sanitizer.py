"""Sanitizer results are parsed from its output, and produced in a separate process."""

import os
from pathlib import Path

import pytest

from tuner.engines.base import SanitizerResult
from tuner.engines.relax.run import sanitizer
from tuner.errors import RequestError

TARGET = '{"kind":"cuda","arch":"sm_90"}'
# As compute-sanitizer 2024 and later print it.
CLEAN = """========= COMPUTE-SANITIZER
========= ERROR SUMMARY: 0 errors
"""
INVALID = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at kernel_kernel+0x70
=========     by thread (0,0,0) in block (64,0,0)
=========     Access at 0x7f1c0a000100 is out of bounds
=========
========= ERROR SUMMARY: 1 error
"""
RACES = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at kernel_kernel+0x80
=========     and Read access at kernel_kernel+0xf0 [64 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
NO_RACES = """========= COMPUTE-SANITIZER
========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)
"""


@pytest.mark.parametrize(
    ("tool", "output", "status", "n_errors", "text"),
    [
        ("memcheck", CLEAN, 0, 0, ""),
        ("memcheck", INVALID, 86, 1, "Invalid __global__ write of size 4 bytes"),
        (
            "racecheck",
            RACES,
            86,
            1,
            "Race reported between Write access at kernel_kernel+0x80",
        ),
        ("racecheck", NO_RACES, 0, 0, ""),
        ("memcheck", CLEAN, 1, None, "the kernel did not run: status 1"),
        ("memcheck", "========= Internal error\n", 255, None, "========= Internal error"),
        ("memcheck", "", 9, None, "it exited with status 9"),
    ],
)
def test_output_is_read(
    tool: str, output: str, status: int, n_errors: int | None, text: str
) -> None:
    """The result has the count and the first error; without a summary it has neither."""
    verdict = sanitizer.parse(tool, output, status)

    assert verdict == SanitizerResult(tool, n_errors, text)
    assert verdict.is_clean is (n_errors == 0)


def test_missing_tool_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names its source."""
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(RequestError, match="CUDA toolkit"):
        sanitizer.sanitize("artifact", TARGET)


def test_a_cpu_has_no_sanitizer() -> None:
    """The target is refused before the tool is looked up."""
    with pytest.raises(RequestError, match="not those of a CPU"):
        sanitizer.sanitize("artifact", '{"kind":"llvm"}')


def test_every_tool_runs_the_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tool runs in a child with its own exit status; one that hangs has no count."""
    script = tmp_path / "compute-sanitizer"
    script.write_text(
        "#!/bin/sh\n"
        'echo $(echo "$@") >> "$(dirname "$0")/calls"\n'
        'if [ "$2" = racecheck ]; then exec sleep 60; fi\n'
        'echo "========= ERROR SUMMARY: 0 errors"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    memory, races = sanitizer.sanitize("the/artifact", TARGET, timeout_secs=2.0)

    assert memory.is_clean
    assert races == SanitizerResult("racecheck", None, "it took longer than 2 s")
    first, second = (tmp_path / "calls").read_text().splitlines()
    assert first.startswith("--tool memcheck --error-exitcode 86")
    assert first.endswith(f"the/artifact {TARGET}")
    assert second.startswith("--tool racecheck")
