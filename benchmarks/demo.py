"""The demonstration: tune SqueezeNet on this CPU, build it, check it and time it.

Every step is a command that a user can repeat. The measurements stay in ``demo-out``; a second
run continues from them.

    python -m benchmarks.demo --seconds 240
"""

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from benchmarks.models import light_model

_FOLDER = Path("demo-out")
_MODEL, _LIBRARY = str(_FOLDER / "squeezenet.onnx"), str(_FOLDER / "squeezenet.lib")
# The weights in the file are placeholders that make the output a constant.
_WEIGHTS = ("--random-weights", "0")


def main() -> None:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seconds", type=float, default=240.0, help="seconds of tuning, over all runs"
    )
    seconds = f"{parser.parse_args().seconds:.0f}"
    _print_comment(
        f"SqueezeNet on {len(os.sched_getaffinity(0))} cores of this CPU: 26 convolutions, "
        "1,000 classes, one image.",
        "The weights in the file are placeholders, so every step draws the same random ones.",
    )
    _FOLDER.mkdir(mode=0o700, exist_ok=True)  # as the data directory of its commands
    source = light_model("squeezenet")
    print(f"$ {shlex.join(('cp', os.path.relpath(source), _MODEL))}")
    shutil.copyfile(source, _MODEL)
    _print_comment(
        f"1. Tune: {seconds} s of measurements, each where it is expected to shorten the",
        "network most. Ctrl-C keeps them; the same command continues.",
    )
    _run("tune", _MODEL, *_WEIGHTS, "--seconds", seconds)
    _print_comment(
        "2. Build: compile the network with the fastest verified kernel of each subgraph."
    )
    _run("build", _MODEL, *_WEIGHTS, "-o", _LIBRARY)
    _print_comment(
        "3. Bench: compare outputs and latency with ONNX Runtime, with the same threads."
    )
    _run("bench", _LIBRARY, "--against", "onnxruntime", "--model", _MODEL)
    _print_comment(
        "Why each trial was spent where it was; more of them: make demo DEMO_SECONDS=480"
    )
    _run("table", "--picks", "5")


def _print_comment(*lines: str) -> None:
    print("", *(f"# {line}" for line in lines), sep="\n", flush=True)


def _run(*arguments: str) -> None:
    """Show a command of the tuner and run it; end with its exit status unless that is 0."""
    command = ("tuner", *arguments, "--data-dir", str(_FOLDER))
    print(f"$ {shlex.join(command)}", flush=True)
    process = subprocess.Popen([Path(sys.executable).with_name("tuner"), *command[1:]])
    # A terminal sends Ctrl-C to both processes; SIGTERM reaches this one only.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    if status := process.wait():
        print(
            f"demo: tuner {arguments[0]} ended with exit status {status}; "
            "make demo continues from here",
            file=sys.stderr,
        )
        sys.exit(status)


if __name__ == "__main__":
    main()
