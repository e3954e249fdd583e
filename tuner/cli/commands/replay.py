"""``tuner replay``: what another allocator would have done with the rounds of a job."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli import options
from tuner.cli.backends import open_backend
from tuner.cli.console import print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.replay import Recording
    from tuner.cli.backends.base import Backend
    from tuner.replay.compare import Replayed


def replay(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB|FILE",
            help="Number of a job, or a recording that --save wrote.",
            show_default=False,
        ),
    ],
    allocator: Annotated[
        list[str],
        typer.Option(
            help="Replay this allocator; once per allocator [default: all].", show_default=False
        ),
    ] = [],  # noqa: B006
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep the curves of the only job, as JSON lines; .gz is compressed.",
            show_default=False,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="PNG", help="Draw latency over trials.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seeds the allocators.", min=0)] = 0,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Rerun allocators on measured curves, without a device.

    Prints the trials and the seconds that each needs to come near to the latency that all
    rounds together reached. The curves of a job are as long as its allocator made them: record
    with tuner tune --allocator round-robin, which favours no task.

    Examples:
        tuner replay 3

        tuner replay 3 --save resnet.jsonl.gz

        tuner replay benchmarks/curves/*.jsonl.gz --plot curves.png
    """
    from scheduler.allocators import ALLOCATORS
    from tuner.errors import RequestError
    from tuner.replay import recording as recordings
    from tuner.replay.compare import compare
    from tuner.replay.compare import plot as draw

    unknown = sorted(set(allocator) - set(ALLOCATORS))
    if unknown:
        raise RequestError(f"unknown allocator {unknown[0]!r}; known are {', '.join(ALLOCATORS)}")
    with open_backend(database, data_dir) as place:
        curves = [_recording(place, source) for source in sources]
    if save is not None:
        if len(curves) > 1:
            raise RequestError("--save keeps one recording, give one job")
        recordings.write(curves[0], save)
    results = compare(curves, allocator or ALLOCATORS, seed=seed)
    if plot is not None:
        draw(results, plot)
    if json_output:
        print_json({"replays": [_as_json(result) for result in results]})
        return
    _show(curves, results)


def _recording(place: "Backend", source: str) -> "Recording":
    from tuner.errors import RequestError
    from tuner.replay import recording as recordings

    if not (source.isascii() and source.isdigit()):
        return recordings.read(Path(source))
    recording = place.recording(place.find_job(int(source)).id)
    if not any(task.n_trials for task in recording.tasks):
        raise RequestError(f"job {source} has no trials to replay")
    return recording


def _as_json(result: "Replayed") -> dict[str, object]:
    return {
        "network": result.network,
        "allocator": result.allocator,
        "trials": int(result.trajectory.trials[-1]) if len(result.trajectory.trials) else 0,
        "reached": [vars(reached) for reached in result.reached],
    }


def _show(curves: "Sequence[Recording]", results: "Sequence[Replayed]") -> None:
    from rich.table import Table
    from rich.text import Text

    from tuner.cli.console import stdout_console
    from tuner.formatting import clock, milliseconds
    from tuner.replay.compare import GOALS

    console = stdout_console()
    for curve in curves:
        table = Table(
            title=Text(f"{curve.network}: to {milliseconds(curve.final_secs)} ms"),
            title_justify="left",
        )
        table.add_column("Allocator")
        for within in GOALS:
            table.add_column(f"within {within:.0%}", justify="right")
        for result in results:
            if result.network == curve.network:
                cells = [
                    f"{reached.trials:.0f} trials, {clock(reached.secs)}"
                    if reached.trials < float("inf")
                    else "never"
                    for reached in result.reached
                ]
                table.add_row(result.allocator, *cells)
        console.print(table)
