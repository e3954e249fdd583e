"""Steps of a report that take no time."""

from benchmarks._gpu_bench import Bench
from benchmarks._gpu_commands import StepError


def find(bench: Bench, text: str) -> None:
    """Add a result."""
    bench.commands.append("tuner find")
    bench.note(result=text, none=float("nan"))


def find_half(bench: Bench) -> None:
    """Add a result, and report the rest as not reached."""
    bench.note(result="a half", not_reached="the other half")


def fail(bench: Bench) -> None:
    """Add a result, and fail."""
    bench.note(result="something")
    raise StepError("there is nothing more")


def break_down(_bench: Bench) -> None:
    """Raise an unexpected error."""
    raise KeyError("pipe | in a cell")


def stop(bench: Bench) -> None:
    """Raise an interrupt."""
    bench.note(result="something")
    raise KeyboardInterrupt
