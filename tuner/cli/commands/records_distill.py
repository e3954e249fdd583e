"""``tuner records distill``: the best lines of a log."""

from contextlib import ExitStack
from typing import Annotated

import typer

from tuner.cli import options, streams
from tuner.cli.commands.records_logs import ReadFormatOption
from tuner.cli.console import print_json

_MAX_ID = 2**31 - 1


def distill(
    file: Annotated[
        str,
        typer.Argument(help="The log to read, of any format; - is stdin.", show_default=False),
    ],
    out: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            help="Where to write it, in the same format; - is stdout.",
            show_default=False,
        ),
    ],
    top: Annotated[
        int, typer.Option(metavar="K", help="So many records of each task.", min=1, max=_MAX_ID)
    ] = 1,
    form: ReadFormatOption = "auto",
    json_output: options.JsonOption = False,
) -> None:
    """Keep the best records of each task of a log, and leave out those that failed.

    The lines that are kept stay as they are. No database takes part: tuner records export --top
    writes the best of one.

    Example:
        tuner records distill tuned.json -o best.json
    """
    from tuner.cli.commands import log_files
    from tuner.cli.rendering import log_reports
    from tuner.errors import RequestError
    from tuner.interrupts import interruptible
    from tuner.tuning_logs import metaschedule
    from tuner.tuning_logs.distill import distill, ranker

    log_files.check_format(form, "auto", "tuner")
    if out == streams.STANDARD and json_output:
        raise RequestError("--json and - do not go together: both print on stdout")
    with ExitStack() as stack:
        stack.enter_context(interruptible())
        form, stream = log_files.open_records(stack, file, form)
        if form == metaschedule.NAME:
            held, written = stack.enter_context(log_files.open_folder(out))
            log_files.copy(metaschedule.files_of(file)[0], held)
        else:
            written = stack.enter_context(streams.output(out))
        done = distill(stream, ranker(form), top, written.write)
    if json_output:
        print_json({"file": out, "format": form, **log_reports.distilled_as_json(done)})
    else:
        log_reports.show_distilled(file, out, done, to_stderr=out == streams.STANDARD)
