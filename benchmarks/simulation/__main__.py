"""Simulation of a fleet in virtual time, to measure the load of the coordinator.

python -m benchmarks.simulation --devices 1000 --networks 500 --tasks 100000
"""

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli import options
from tuner.cli.console import print_json
from tuner.cli.main import run_program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.simulation.report import Report
    from benchmarks.simulation.scenario import Scenario

_CURVES = Path(__file__).parents[1] / "scheduler" / "curves"
_MINUTE = 60.0
_N_PROFILED = 25


def simulate(
    recordings: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE]...",
            help="Recordings of tuner replay --save to draw simulated tasks from "
            "[default: those under benchmarks/scheduler/curves].",
            show_default=False,
        ),
    ] = None,
    devices: Annotated[int, typer.Option(help="Number of devices.", min=1)] = 64,
    networks: Annotated[int, typer.Option(help="Number of networks; each has a job.", min=1)] = 20,
    tasks: Annotated[int, typer.Option(help="Number of tasks of all networks.", min=1)] = 1000,
    fingerprints: Annotated[
        int, typer.Option(help="Number of device kinds that networks are spread over.", min=1)
    ] = 1,
    builders: Annotated[
        int | None,
        typer.Option(
            help="Number of concurrent calls of builders [default: a quarter more than needed].",
            min=1,
            show_default=False,
        ),
    ] = None,
    minutes: Annotated[float, typer.Option(help="Virtual minutes to simulate.")] = 10.0,
    warm_up: Annotated[
        float, typer.Option(metavar="MINUTES", help="Virtual minutes excluded from the results.")
    ] = 2.0,
    trials_per_round: Annotated[int, typer.Option(help="Number of trials per round.", min=1)] = 64,
    search_secs: Annotated[
        float, typer.Option(help="Seconds a builder needs to find one candidate.")
    ] = 0.2,
    build_secs: Annotated[
        float, typer.Option(help="Seconds a builder needs to build one candidate.")
    ] = 1.35,
    run_secs: Annotated[
        float, typer.Option(help="Seconds a device needs for one candidate of an average task.")
    ] = 0.2,
    call_secs: Annotated[
        float, typer.Option(help="CPU seconds of the coordinator for each call to a worker.")
    ] = 0.0,
    build_errors: Annotated[float, typer.Option(help="Share of builds that fail.")] = 0.01,
    run_errors: Annotated[float, typer.Option(help="Share of runs that fail.")] = 0.01,
    hangs: Annotated[float, typer.Option(help="Share of runs that never end.")] = 0.0005,
    worker_deaths: Annotated[
        float, typer.Option(help="Share of calls that end their worker.")
    ] = 0.0005,
    device_losses: Annotated[float, typer.Option(help="Losses of each device per hour.")] = 0.1,
    away_secs: Annotated[float, typer.Option(help="Seconds until a lost device returns.")] = 60.0,
    slow_devices: Annotated[
        float, typer.Option(help="Share of devices that are three times slower.")
    ] = 0.01,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.", min=0)] = 0,
    database: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Database for the records [default: a temporary SQLite file].",
            show_default=False,
        ),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Print a profile of the coordinator to stderr.")
    ] = False,
    json_output: options.JsonOption = False,
) -> None:
    """Run the coordinator on a simulated fleet, in virtual time.

    Coordinator, database and scheduler are the real ones; devices, builders and their time are
    simulated. Time advances with the work of the coordinator, so an overloaded coordinator leaves
    its devices idle. The report has their idle share, and the cost of a trial for the coordinator
    and its database. Exit status 1 if a trial was lost or counted twice.

    Examples:
        python -m benchmarks.simulation

        python -m benchmarks.simulation --devices 1000 --networks 500 --tasks 100000
    """
    from benchmarks.simulation.report import as_json
    from benchmarks.simulation.running import simulate as run
    from benchmarks.simulation.scenario import Costs, Faults, Scenario
    from records import database as databases
    from tuner.errors import WorkError
    from tuner.job_replay import recording as files

    scenario = Scenario(
        n_devices=devices,
        n_networks=networks,
        n_tasks=tasks,
        n_fingerprints=fingerprints,
        builders=builders,
        secs=minutes * _MINUTE,
        warm_up_secs=warm_up * _MINUTE,
        trials_per_round=trials_per_round,
        seed=seed,
        costs=Costs(search_secs, build_secs, run_secs, call_secs),
        faults=Faults(
            build_errors=build_errors,
            run_errors=run_errors,
            hangs=hangs,
            worker_deaths=worker_deaths,
            device_losses=device_losses,
            away_secs=away_secs,
            slow_devices=slow_devices,
        ),
    )
    curves = [files.read(path) for path in recordings or sorted(_CURVES.glob("*.jsonl.gz"))]
    with tempfile.TemporaryDirectory() as folder:
        engine = databases.open_database(database or f"sqlite:///{folder}/records.db")
        try:
            with _profiled(profile):
                report = run(scenario, curves, engine, Path(folder))
        finally:
            engine.dispose()
    if json_output:
        print_json(as_json(report))
    else:
        _show(scenario, report)
    if not report.check.is_clean:
        raise WorkError(
            f"of {report.check.n_records} records {report.check.n_missing} are missing, "
            f"{report.check.n_surplus} surplus and {report.check.n_uncounted} not counted"
        )


@contextmanager
def _profiled(is_enabled: bool) -> "Iterator[None]":
    """Print the functions with the most time of this thread, own and total."""
    import cProfile
    import pstats
    import sys
    import time

    if not is_enabled:
        yield
        return
    profile = cProfile.Profile(time.thread_time)
    with profile:
        yield
    statistics = pstats.Stats(profile, stream=sys.stderr)
    for order in ("tottime", "cumulative"):
        statistics.sort_stats(order).print_stats(_N_PROFILED)


def _show(scenario: "Scenario", report: "Report") -> None:
    from rich.table import Table

    from tuner.cli.console import stdout_console

    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in _lines(scenario, report):
        table.add_row(name, value)
    stdout_console().print(table)


def _lines(scenario: "Scenario", report: "Report") -> "Iterator[tuple[str, str]]":
    """Yield the lines of a report as name and value."""
    yield "Devices", f"{scenario.n_devices}, {report.n_apart} kept apart"
    yield "Networks and tasks", f"{scenario.n_networks}, {scenario.n_tasks}"
    yield (
        "Trials",
        f"{report.n_trials} in {report.secs:.0f} s: {report.trials_per_sec:.1f} per second",
    )
    yield "Devices idle", f"{report.idle_share:.1%}"
    yield "Coordinator", f"{report.cpu_share:.1%} of a core"
    yield "  of it a trial", f"{report.cpu_secs_per_trial * 1e3:.3f} ms"
    yield "  of it a round", f"{report.cpu_secs_per_round * 1e3:.2f} ms"
    yield "Database transactions a trial", f"{report.transactions_per_trial:.3f}"
    yield "Database statements a trial", f"{report.statements_per_trial:.3f}"
    yield "Database a trial", f"{report.database_secs_per_trial * 1e3:.3f} ms"
    yield "  and waiting for it", f"{report.database_wait_secs_per_trial * 1e3:.3f} ms"
    yield "Builders busy", f"{report.busy_builders:.0f} of {report.n_builders}"
    yield "Memory", f"{report.peak_bytes / 2**20:.0f} MiB"
    yield "Records", f"{report.check.n_records}, {'complete' if report.check.is_clean else 'BAD'}"


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(simulate)
    run_program(typer.main.get_command(app))
