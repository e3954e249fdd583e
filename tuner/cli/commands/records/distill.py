"""``tuner records distill``: keep the best lines of a log."""

from contextlib import ExitStack
from typing import Annotated

from tuner.cli import options, streams
from tuner.cli.commands.records.logs import ReadFormatOption
from tuner.cli.console import print_json
from tuner.cli.options import argument, option

_MAX_ID = 2**31 - 1


def distill(
    file: Annotated[str, argument("FILE", "Log of any format; - reads stdin.")],
    out: Annotated[
        str,
        option(
            "FILE", "File for the result in the same format; - writes stdout.", "--output", "-o"
        ),
    ],
    top: Annotated[int, option("K", "Number of records kept per task.", min=1, max=_MAX_ID)] = 1,
    form: ReadFormatOption = "auto",
    json_output: options.JsonOption = False,
) -> None:
    """Keep the best records of each task of a log; leave out failed ones.

    Lines are copied unchanged. Works on files alone; to write the best records of a database, use
    `tuner records export --top`.

    Example:
        tuner records distill tuned.json -o best.json
    """
    from tuner.cli.commands.records import log_files
    from tuner.cli.rendering.records import log_reports
    from tuner.errors import RequestError
    from tuner.interrupts import interruptible
    from tuner.tuning_logs import metaschedule
    from tuner.tuning_logs.distill import distill, ranker

    log_files.check_format(form, "auto", "tuner")
    if out == streams.STANDARD and json_output:
        raise RequestError("--json cannot be used with -: both print on stdout")
    with ExitStack() as stack:
        stack.enter_context(interruptible())
        form, stream = log_files.open_records(stack, file, form)
        if form == metaschedule.NAME:
            workloads, records = stack.enter_context(log_files.open_folder(out))
            log_files.copy(metaschedule.files_of(file)[0], workloads)
        else:
            records = stack.enter_context(streams.output(out))
        distilled = distill(stream, ranker(form), top, records.write)
    if json_output:
        print_json({"file": out, "format": form, **log_reports.distilled_as_json(distilled)})
    else:
        log_reports.show_distilled(file, out, distilled, to_stderr=out == streams.STANDARD)
