"""``tuner records export`` and ``import``: records as files, ours and of other tools."""

from contextlib import ExitStack
from io import TextIOWrapper
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, BinaryIO, cast

import typer

from tuner.cli import connection, options, streams
from tuner.cli.backends import open_backend
from tuner.cli.console import print_json, print_line

if TYPE_CHECKING:
    from tuner.tuning_logs.base import LogImportReport
    from tuner.tuning_logs.export_log import Exported, ExportRequest
    from tuner.tuning_logs.import_log import ImportRequest

_MAX_ID = 2**31 - 1

FormatOption = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="NAME",
        help="tuner (ours), metaschedule (a folder with TVM's JSON database) or ansor (a log of "
        "TVM's auto_scheduler, v0.6).",
    ),
]
ReadFormatOption = Annotated[
    str,
    typer.Option(
        "--format", metavar="NAME", help="tuner, metaschedule or ansor; auto looks into it."
    ),
]


def export(
    file: Annotated[
        str,
        typer.Argument(
            help="Where to write the log; - is stdout. A folder for --format metaschedule.",
            show_default=False,
        ),
    ],
    form: FormatOption = "tuner",
    top: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            help="Only the K best verified records of each task; not for --format tuner, whose "
            "logs tuner records distill reduces.",
            show_default=False,
            min=1,
            max=_MAX_ID,
        ),
    ] = None,
    target_id: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Only records of this target; tuner records best numbers them.",
            show_default=False,
            min=1,
            max=_MAX_ID,
        ),
    ] = None,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Write records to a log: ours, with every record, or one that TVM's own tools read.

    The file is complete or not there: it is written beside its place and moved when it is whole.

    Examples:
        tuner records export measured.jsonl

        tuner records export --format metaschedule --top 1 best.db
    """
    from tuner.cli.commands import log_files
    from tuner.cli.rendering import log_reports
    from tuner.errors import RequestError
    from tuner.interrupts import interruptible

    log_files.check_format(form, "tuner")
    if file == streams.STANDARD and json_output:
        raise RequestError("--json and - do not go together: both print on stdout")
    if form != "tuner":
        from tuner.tuning_logs.export_log import ExportRequest

        done = _export_elsewhere(file, ExportRequest(form, target_id, top), database, data_dir)
        if json_output:
            print_json({"file": file, "format": form, **log_reports.export_as_json(done)})
        else:
            log_reports.show_export(file, form, done, to_stderr=file == streams.STANDARD)
        if done.skipped and not done.n_records:
            raise typer.Exit(1)
        return
    if top is not None:
        raise RequestError("--top is for logs of other tools; tuner records distill reduces ours")
    with (
        open_backend(database, data_dir) as source,
        interruptible(),
        streams.output(file) as stream,
    ):
        n_records = source.export(cast("IO[str]", streams.RecordCounter(stream)), target_id)
    if json_output:
        print_json({"file": file, "records": n_records})
    else:
        print_line(f"exported {n_records} records to {file}", to_stderr=file == streams.STANDARD)


def import_(
    file: Annotated[
        str,
        typer.Argument(
            help="The log to read, gzip or plain; - is stdin. A folder, or one of its two files, "
            "is a MetaSchedule database.",
            show_default=False,
        ),
    ],
    form: ReadFormatOption = "auto",
    target: options.TargetOption = "llvm",
    foreign: Annotated[
        bool,
        typer.Option(
            "--foreign", help="Take in what a log of another tool says of other targets too."
        ),
    ] = False,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Read a log of records: ours, a MetaSchedule database, or a log of Ansor.

    Records that are known are not added again. Of ours it is all or nothing: a damaged line undoes
    the import. Of other tools' logs, lines that cannot be used are left out, each with its reason,
    and none of the others is used before tuner records verify has measured it here. A last line
    that was cut off is passed over, and reported as torn.

    Examples:
        tuner records import measured.jsonl

        tuner records import work_dir --target llvm
    """
    from tuner.cli.commands import log_files
    from tuner.cli.rendering import log_reports
    from tuner.errors import RequestError
    from tuner.interrupts import interruptible
    from tuner.tuning_logs.files import DAMAGED
    from tuner.tuning_logs.import_log import ImportRequest

    log_files.check_format(form, "auto", "tuner")
    with ExitStack() as stack:
        form, stream = log_files.open_records(stack, file, form)
        if form != "tuner":
            request = ImportRequest(file, form, target, foreign)
            report = _import_elsewhere(request, stream, database, data_dir)
            log_reports.tell_import(file, report, json_output=json_output)
            return
        stack.enter_context(interruptible())
        lines = TextIOWrapper(cast("BinaryIO", stream), encoding="utf-8", newline="\n")
        source = stack.enter_context(open_backend(database, data_dir))
        try:
            imported = source.import_(lines, file)
        except DAMAGED as error:
            raise RequestError(f"cannot import {file}: {error}; nothing was kept") from error
    if json_output:
        print_json({"file": file, **vars(imported)})
        return
    torn = ", the last line was torn and left out" if imported.torn else ""
    print_line(f"imported {file}: {imported.added} records added, {imported.known} known{torn}")


def _export_elsewhere(
    file: str, request: "ExportRequest", database: str | None, data_dir: Path | None
) -> "Exported":
    from tuner.cli.commands import log_files
    from tuner.cli.rendering import log_reports
    from tuner.context import open_context
    from tuner.interrupts import interruptible
    from tuner.tuning_logs.export_log import export_log

    connection.refuse(f"records export --format {request.format}")
    with (
        interruptible(only_waiting=True),
        open_context(database, data_dir) as context,
        log_files.open_writer(file, request.format) as writer,
    ):
        return export_log(context, request, writer, log_reports.teller("records"))


def _import_elsewhere(
    request: "ImportRequest",
    stream: IO[bytes],
    database: str | None,
    data_dir: Path | None,
) -> "LogImportReport":
    from tuner.cli.rendering import log_reports
    from tuner.context import open_context
    from tuner.interrupts import interruptible
    from tuner.tuning_logs.import_log import import_log

    connection.refuse(f"records import --format {request.format}")
    with interruptible(only_waiting=True), open_context(database, data_dir) as context:
        return import_log(context, request, stream, log_reports.teller("lines"))
