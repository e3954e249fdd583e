"""The demonstration: tune SqueezeNet on this CPU, build it, check it and time it.

Every step is a command that a user can repeat. The measurements stay in ``demo-out``; a second
run continues from them.

    python -m benchmarks.demo --seconds 240
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.models import light_model
from tuner.formatting import counted

_FOLDER = Path("demo-out")
_MODEL = _FOLDER / "squeezenet.onnx"
_LIBRARY = _FOLDER / "squeezenet.lib"
# The weights in the file are placeholders that make the output a constant.
_WEIGHTS = ("--random-weights", "0")
_DATA_DIR_OPTION = ("--data-dir", str(_FOLDER))


@dataclass(frozen=True)
class Bench:
    """Output of ``tuner bench``; the estimate is None if a subgraph has no record."""

    library_secs: float
    estimated_secs: float | None
    peer_secs: float
    ratio: float


class StepError(Exception):
    """Failure of a command of the demonstration, with its exit status."""

    def __init__(self, command: str, exit_code: int) -> None:
        super().__init__(f"{command} ended with exit status {exit_code}")
        self.exit_code = exit_code


def main() -> None:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seconds", type=float, default=240.0, help="seconds of tuning, over all runs"
    )
    arguments = parser.parse_args()
    try:
        _demonstrate(arguments.seconds)
    except StepError as failure:
        print(f"demo: {failure}; make demo continues from here", file=sys.stderr)
        sys.exit(failure.exit_code)


def _demonstrate(seconds: float) -> None:
    started = time.monotonic()
    _print_comment(
        f"SqueezeNet on {len(os.sched_getaffinity(0))} cores of this CPU: 26 convolutions, "
        "1,000 classes, one image.",
        "The weights in the file are placeholders, so every step draws the same random ones.",
    )
    _FOLDER.mkdir(exist_ok=True)
    source = light_model("squeezenet")
    _show("cp", os.path.relpath(source), str(_MODEL))
    shutil.copyfile(source, _MODEL)
    _print_comment(
        f"1. Tune: {seconds:.0f} s of measurements, each where it is expected to shorten the",
        "network most. Ctrl-C keeps them; the same command continues.",
    )
    _run("tune", str(_MODEL), *_WEIGHTS, "--seconds", f"{seconds:.0f}", *_DATA_DIR_OPTION)
    _print_comment(
        "2. Build: compile the network with the fastest verified kernel of each subgraph."
    )
    _run("build", str(_MODEL), *_WEIGHTS, "-o", str(_LIBRARY), *_DATA_DIR_OPTION)
    _print_comment(
        "3. Bench: compare outputs and latency with ONNX Runtime, with the same threads."
    )
    bench = _bench()
    _conclude(bench, _table(), time.monotonic() - started)


def _bench() -> Bench:
    against = ("--against", "onnxruntime", "--model", str(_MODEL))
    text = _run("bench", str(_LIBRARY), *against, *_DATA_DIR_OPTION, keep=True)
    return read_bench(text)


def read_bench(text: str) -> Bench:
    """Read the lines that ``tuner bench --against`` prints.

    Raises:
        ValueError: If a line is missing.
    """
    row = r"^(library|onnxruntime) .*?(?:CPU|GPU) +([0-9.]+)"
    medians = {name: float(number) / 1e3 for name, number in re.findall(row, text, re.MULTILINE)}
    missing = {"library", "onnxruntime"} - set(medians)
    if missing:
        raise ValueError(f"tuner bench printed no {min(missing)}")
    estimate = re.search(r"^estimate +([0-9.]+)", text, re.MULTILINE)
    return Bench(
        library_secs=medians["library"],
        estimated_secs=float(estimate[1]) / 1e3 if estimate else None,
        peer_secs=medians["onnxruntime"],
        ratio=medians["library"] / medians["onnxruntime"],
    )


def _table() -> dict[str, Any]:
    done = subprocess.run(
        [_tuner(), "table", "--json", *_DATA_DIR_OPTION], capture_output=True, text=True, check=True
    )
    table: dict[str, Any] = json.loads(done.stdout)
    return table


def _conclude(bench: Bench, table: dict[str, Any], secs: float) -> None:
    folder = os.path.relpath(Path(sys.executable).parent)
    print(
        f"\nLatency   {bench.library_secs * 1e3:.2f} ms measured, {_estimate(bench)}"
        f"\nAgainst   ONNX Runtime, {bench.peer_secs * 1e3:.2f} ms: "
        f"{bench.ratio:.2f} of its time, equal outputs"
        f"\nStored    {counted(table['trials'], 'trial')} of {len(table['tasks'])} tasks, "
        f"in {secs:.0f} s; next: {folder}/tuner table --picks 10 --data-dir {_FOLDER}"
    )


def _estimate(bench: Bench) -> str:
    if bench.estimated_secs is None:
        return "with untuned subgraphs; spend more: make demo DEMO_SECONDS=480"
    off = bench.estimated_secs / bench.library_secs - 1
    return f"{bench.estimated_secs * 1e3:.2f} ms estimated from its kernels ({off:+.1%})"


def _print_comment(*lines: str) -> None:
    print("", *(f"# {line}" for line in lines), sep="\n", flush=True)


def _show(*command: str) -> None:
    print(f"$ {shlex.join(command)}", flush=True)


def _tuner() -> str:
    return str(Path(sys.executable).with_name("tuner"))


def _run(*arguments: str, keep: bool = False) -> str:
    """Run a command of the tuner and show it; return its output if ``keep``, else nothing.

    Raises:
        StepError: If its exit status is not 0.
    """
    _show("tuner", *arguments)
    process = subprocess.Popen(
        [_tuner(), *arguments], stdout=subprocess.PIPE if keep else None, text=True
    )

    def stop(number: int, _frame: FrameType | None) -> None:
        # A terminal sends Ctrl-C to both processes; SIGTERM reaches this one only.
        if number == signal.SIGTERM:
            process.terminate()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        text, _ = process.communicate()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if keep:
        print(text, end="", flush=True)
    if process.returncode:
        raise StepError(f"tuner {arguments[0]}", process.returncode)
    return text or ""


if __name__ == "__main__":
    main()
