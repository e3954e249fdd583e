"""``tuner table``: show the task scheduler table of a job."""

import time
from typing import TYPE_CHECKING, Annotated

from tuner.cli import options
from tuner.cli.backends import open_backend
from tuner.cli.console import print_json
from tuner.cli.options import argument, flag, option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType

    from tuner.cli.backends import Backend
    from tuner.schemas import JobView, PickView

_REDRAW_INTERVAL_SECS = 1.0
_CTRL_C = 130
_N_EXPLAINED = 10
# Lines of a terminal that neither the rows of the table nor the picks take.
_FRAME_LINES = 14


def table(
    job: Annotated[
        int | None, argument("JOB", "Number of the job [default: the one that changed last].")
    ] = None,
    watch: Annotated[
        bool, flag("--watch", "Redraw every second while the job runs.", "-w")
    ] = False,
    n_picks: Annotated[
        int, option("N", "Show the last N picks with their reasons.", "--picks", min=0)
    ] = 0,
    why: Annotated[
        bool, flag("--why", "Explain the last 10 picks, or those of --picks, in words.")
    ] = False,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Show the task scheduler table of a job.

    Prints the trials, latency and share of each task, and the reason of the last pick. Only reads
    the database, so it can run at any time.

    Examples:
        tuner table
        tuner table 3 --picks 20
        tuner table 3 --why
        tuner table --watch
    """
    from tuner.cli.console import stdout_console
    from tuner.cli.rendering.json_output import table_as_json
    from tuner.cli.rendering.tables import why_line
    from tuner.errors import RequestError
    from tuner.queries.picks import TERMS

    if watch and json_output:
        raise RequestError("--watch cannot be used with --json, which prints one object")
    n_picks = n_picks or (_N_EXPLAINED if why else 0)
    with open_backend(database, data_dir) as backend:
        job_id = backend.find_job(job).id
        if json_output:
            view = _read(backend, job_id)
            print_json(table_as_json(view, _picks(backend, view, n_picks)))
            return
        console = stdout_console()
        if watch:
            _watch(backend, job_id, n_picks, console)
        view = _read(backend, job_id)
        picks = _picks(backend, view, n_picks)
    console.print(_render(view, () if why else picks))
    if why:
        for pick in picks:
            console.print(why_line(pick), highlight=False, markup=False)
        for name, meaning in TERMS.items():
            console.print(f"{name}: {meaning}", style="dim", highlight=False)


def _read(backend: "Backend", job_id: int) -> "JobView":
    from tuner.errors import RequestError

    view = backend.table(job_id)
    if not view.tasks:
        reason = f": {view.job.message}" if view.job.message else ""
        raise RequestError(
            f"job {job_id} has no tasks: its network is not split yet "
            f"(the job is {view.job.state}{reason})"
        )
    return view


def _picks(backend: "Backend", view: "JobView", n_picks: int) -> "Sequence[PickView]":
    return backend.picks(view.job.id, n_picks) if n_picks and view.last_pick else ()


def _watch(backend: "Backend", job_id: int, n_picks: int, console: "Console") -> None:
    """Redraw until the job stops or Ctrl-C is pressed, which is not a failure here."""
    from rich.live import Live

    from tuner.cli.rendering.tables import state_line
    from tuner.interrupts import Interrupted, interruptible

    try:
        with (
            interruptible(),
            Live(
                console=console, auto_refresh=False, transient=True, vertical_overflow="crop"
            ) as live,
        ):
            last_line = ""
            while (view := backend.table(job_id)).job.state in ("queued", "running"):
                if console.is_terminal:
                    n_rows = max(console.size.height - _FRAME_LINES - min(n_picks, 10), 5)
                    live.update(_render(view, _picks(backend, view, n_picks), n_rows), refresh=True)
                elif (line := state_line(view.job)) != last_line:
                    last_line = line
                    console.print(line, highlight=False, markup=False, soft_wrap=True)
                    console.file.flush()
                time.sleep(_REDRAW_INTERVAL_SECS)
    except Interrupted as stop:
        if stop.exit_code != _CTRL_C:
            raise


def _render(
    view: "JobView", picks: "Sequence[PickView]", n_rows: int | None = None
) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    from tuner.cli.rendering.tables import pick_table, task_table
    from tuner.formatting import job_facts

    parts: list[RenderableType] = [task_table(view.tasks, n_rows=n_rows)]
    parts += [Text(line) for line in job_facts(view)]
    if picks and view.last_pick:
        parts.append(pick_table(picks, view.last_pick.sequence))
    return Group(*parts)
