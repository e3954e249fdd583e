"""Steps of a report that take no time."""

from benchmarks._gpu_bench import Bench
from benchmarks._gpu_commands import StepFailed


def find(bench: Bench, text: str) -> None:
    """Find something out."""
    bench.commands.append("tuner find")
    bench.note(found=text, none=float("nan"))


def find_half(bench: Bench) -> None:
    """Find something out, and leave the rest."""
    bench.note(found="a half", not_reached="the other half")


def fail(bench: Bench) -> None:
    """Find something out, and fail."""
    bench.note(found="something")
    raise StepFailed("there is nothing more")


def break_down(_bench: Bench) -> None:
    """Show a defect."""
    raise KeyError("pipe | in a cell")


def stop(bench: Bench) -> None:
    """Be interrupted."""
    bench.note(found="something")
    raise KeyboardInterrupt
