"""``tuner replay``: compare allocators on the measured rounds of a job."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tuner.cli import options
from tuner.cli.backends import open_backend
from tuner.cli.console import print_json
from tuner.cli.options import argument, option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.replay import Recording
    from tuner.cli.backends import Backend
    from tuner.job_replay.compare import Replayed


def replay(
    sources: Annotated[
        list[str],
        argument(
            "JOB|FILE", "Number of a job, or a recording that --save wrote; several are allowed."
        ),
    ],
    allocator: Annotated[
        list[str], option("NAME", "Replay this allocator; repeat for several [default: all].")
    ] = [],
    save: Annotated[
        Path | None,
        option(
            "FILE", "Save the recording of the job as JSON lines, compressed if FILE ends with .gz."
        ),
    ] = None,
    plot: Annotated[Path | None, option("FILE", "Plot latency over trials as PNG.")] = None,
    seed: Annotated[int, option("SEED", "Seed of the allocators.", min=0)] = 0,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Compare allocators on the measured rounds of a job, without a device.

    Prints the trials and the time that each allocator needs to come close to the final latency of
    the recording. An allocator can only replay rounds that were measured: record jobs with
    `tuner tune --allocator round-robin`, which favours no task.

    Examples:
        tuner replay 3
        tuner replay 3 --save resnet.jsonl.gz
        tuner replay benchmarks/scheduler/curves/*.jsonl.gz --plot curves.png
    """
    from scheduler.allocators import ALLOCATORS
    from tuner.errors import RequestError
    from tuner.job_replay import recording as recordings
    from tuner.job_replay.compare import compare
    from tuner.job_replay.compare import plot as draw

    unknown = sorted(set(allocator) - set(ALLOCATORS))
    if unknown:
        names = ", ".join(ALLOCATORS)
        raise RequestError(f"unknown allocator {unknown[0]!r}; known allocators: {names}")
    with open_backend(database, data_dir) as backend:
        curves = [_recording(backend, source) for source in sources]
    if save is not None:
        if len(curves) > 1:
            raise RequestError("--save takes one recording; give one job")
        recordings.write(curves[0], save)
    results = compare(curves, allocator or ALLOCATORS, seed=seed)
    if plot is not None:
        draw(results, plot)
    if json_output:
        print_json({"replays": [_as_json(result) for result in results]})
        return
    _show(curves, results)


def _recording(backend: "Backend", source: str) -> "Recording":
    from tuner.errors import RequestError
    from tuner.job_replay import recording as recordings

    if not (source.isascii() and source.isdigit()):
        return recordings.read(Path(source))
    recording = backend.recording(backend.find_job(int(source)).id)
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
    from tuner.cli.console import stdout_console
    from tuner.cli.rendering.grid import Column, Grid
    from tuner.formatting import clock, counted, milliseconds
    from tuner.job_replay.compare import GOALS

    console = stdout_console()
    for curve in curves:
        goals = (Column(f"within {within:.0%}", "number") for within in GOALS)
        title = f"{curve.network}: to {milliseconds(curve.final_secs)} ms"
        table = Grid(Column("Allocator"), *goals, title=title)
        for result in results:
            if result.network == curve.network:
                cells = [
                    f"{counted(round(reached.trials), 'trial')}, {clock(reached.secs)}"
                    if reached.trials < float("inf")
                    else "never"
                    for reached in result.reached
                ]
                table.add(result.allocator, *cells)
        console.print(table)
