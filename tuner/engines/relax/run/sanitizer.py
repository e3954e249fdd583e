"""Check of an artifact with NVIDIA's compute-sanitizer, in a separate process.

It runs the kernel once on its seeded inputs: under memcheck for invalid addresses, then under
racecheck for races in shared memory. Both slow a kernel down a hundredfold, so that only winners
are checked.
"""

import re
import shutil
import subprocess

from tuner.engines.base import SanitizerResult
from tuner.engines.relax.run.run_device import is_gpu
from tuner.engines.verification import checks
from tuner.errors import RequestError, last_line
from tuner.workers.processes import python_command

TOOLS = ("memcheck", "racecheck")
# Exit status of the sanitizer on findings; the program itself uses lower ones.
_FINDINGS_STATUS = 86
_SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")
_FIRST = re.compile(r"^=+ (?:Error: |Warning: )?((?:Invalid|Race|Misaligned|Program hit).*)$", re.M)
_CALL = f"import sys; from {__name__} import call; call(*sys.argv[1:])"


def sanitize(
    artifact: str, target: str, *, timeout_secs: float = 300.0
) -> tuple[SanitizerResult, ...]:
    """Run an artifact under every tool.

    Args:
        artifact: Directory of the artifact.
        target: Canonical JSON of the target, a GPU of this machine.
        timeout_secs: Time-out of each tool, seconds.

    Raises:
        RequestError: If the target is not a GPU, or compute-sanitizer is not installed.
    """
    if not is_gpu(target):
        raise RequestError("compute-sanitizer checks kernels of NVIDIA GPUs, not those of a CPU")
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        raise RequestError(
            "compute-sanitizer is not on the PATH; it comes with the CUDA toolkit "
            "(cuda-sanitizer in NVIDIA's package repositories)"
        )
    return tuple(_check(sanitizer, tool, artifact, target, timeout_secs) for tool in TOOLS)


def call(artifact: str, target: str) -> None:
    """Run an artifact once: the body of the process under the sanitizer."""
    from tuner.engines.relax.run.artifacts import load_kernel

    kernel = load_kernel(artifact, target)
    checks.check(kernel, ())


def parse(tool: str, output: str, status: int) -> SanitizerResult:
    """Parse the result of a tool from its output and exit status."""
    summary = _SUMMARY.search(output)
    first = _FIRST.search(output)
    if summary is None:
        text = last_line(output) or f"it exited with status {status}"
        return SanitizerResult(tool, None, text[-500:])
    n_errors = int(summary[1] or summary[2] or 0)
    if not n_errors and status:
        return SanitizerResult(tool, None, f"the kernel did not run: status {status}")
    return SanitizerResult(tool, n_errors, first[1].strip() if first and n_errors else "")


def _check(
    sanitizer: str, tool: str, artifact: str, target: str, timeout_secs: float
) -> SanitizerResult:
    options = ["--tool", tool, "--error-exitcode", str(_FINDINGS_STATUS), "--launch-timeout", "0"]
    command = [sanitizer, *options, *python_command.run_code(_CALL, artifact, target)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_secs, check=False
        )
    except subprocess.TimeoutExpired:
        return SanitizerResult(tool, None, f"it took longer than {timeout_secs:g} s")
    return parse(tool, done.stdout + done.stderr, done.returncode)
