"""``tuner records export`` and ``import``: logs of the tuner and of other tools."""

from contextlib import ExitStack, nullcontext
from io import TextIOWrapper
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, BinaryIO, cast

import typer

from tuner.cli import connection, hints, options, streams
from tuner.cli.backends import open_backend
from tuner.cli.console import print_json, print_line, print_note
from tuner.cli.options import argument, flag, option

if TYPE_CHECKING:
    from tuner.tuning_logs.base import LogImportReport
    from tuner.tuning_logs.export_log import Exported, ExportRequest
    from tuner.tuning_logs.import_log import ImportRequest

_MAX_ID = 2**31 - 1

FormatOption = Annotated[
    str,
    option(
        "NAME",
        "Format of the log: tuner (JSON lines), metaschedule (a folder with TVM's JSON "
        "database), ansor (a log of TVM's auto_scheduler, v0.6) or t4 (JSON of Kernel Tuner).",
        "--format",
    ),
]
ReadFormatOption = Annotated[
    str,
    option(
        "NAME", "Format of the log: tuner, metaschedule or ansor; auto recognises it.", "--format"
    ),
]


def export(
    file: Annotated[
        str,
        argument(
            "FILE", "File for the log, or a folder for --format metaschedule; - writes stdout."
        ),
    ],
    form: FormatOption = "tuner",
    top: Annotated[
        int | None,
        option(
            "K",
            "Export the K best verified records of each task only; not with --format tuner, "
            "see `tuner records distill`.",
            min=1,
            max=_MAX_ID,
        ),
    ] = None,
    target_id: Annotated[
        int | None,
        option(
            "N",
            "Export records of this target only; `tuner records best` lists the numbers.",
            min=1,
            max=_MAX_ID,
        ),
    ] = None,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Export records to a log: all of them, for tuners or for analyses, or verified ones for TVM.

    The file appears only when it is complete.

    Examples:
        tuner records export measured.jsonl
        tuner records export --format metaschedule --top 1 best.db
        tuner records export --format t4 results.json
    """
    from tuner.cli.commands.records import log_files
    from tuner.cli.rendering.records import log_reports
    from tuner.errors import RequestError
    from tuner.formatting import counted
    from tuner.interrupts import interruptible
    from tuner.tuning_logs import t4

    log_files.check_format(form, "tuner", t4.NAME)
    if file == streams.STANDARD and json_output:
        raise RequestError("--json cannot be used with -: both print on stdout")
    if form not in ("tuner", t4.NAME):
        from tuner.tuning_logs.export_log import ExportRequest

        exported = _export_log(file, ExportRequest(form, target_id, top), database, data_dir)
        if json_output:
            print_json({"file": file, "format": form, **log_reports.export_as_json(exported)})
        else:
            log_reports.show_export(file, form, exported, to_stderr=file == streams.STANDARD)
        if exported.skipped and not exported.n_records:
            raise typer.Exit(1)
        return
    if top is not None:
        raise RequestError(
            "--top needs --format metaschedule or ansor; reduce a log of the tuner with "
            "`tuner records distill`"
        )
    with (
        open_backend(database, data_dir) as backend,
        interruptible(),
        streams.output(file) as stream,
        t4.open_writer(stream.write) if form == t4.NAME else nullcontext(stream) as log,
    ):
        n_records = backend.export(cast("IO[str]", streams.RecordCounter(log)), target_id)
    if json_output:
        print_json({"file": file, "records": n_records})
    else:
        print_line(
            f"exported {counted(n_records, 'record')} to {file}", to_stderr=file == streams.STANDARD
        )


def import_(
    file: Annotated[
        str,
        argument(
            "FILE",
            "Log, plain or gzip; - reads stdin. A MetaSchedule database is named by its "
            "folder or by one of its two files.",
        ),
    ],
    form: ReadFormatOption = "auto",
    target: Annotated[
        str, option("TARGET", "Target that a log of another tool must have.", "--target", "-t")
    ] = "llvm",
    foreign: Annotated[
        bool, flag("--foreign", "Also import records of other targets from a log of another tool.")
    ] = False,
    trust: Annotated[
        bool,
        flag(
            "--trust",
            "Take the records of a log of the tuner as measured here. Trust it like a program "
            "that you run.",
        ),
    ] = False,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Import a log of the tuner, a MetaSchedule database, or a log of Ansor.

    Known records are not added again. A log of the tuner is imported completely or, if a line is
    damaged, not at all. Logs of other tools are imported without the lines that cannot be used,
    which are counted by reason. `tuner records verify` must measure the records of either here
    before a build uses them, unless --trust is given. A last line that is cut off is left out and
    reported as torn.

    Examples:
        tuner records import measured.jsonl
        tuner records import backup.jsonl --trust
        tuner records import work_dir --target llvm
    """
    from tuner.cli.commands.records import log_files
    from tuner.cli.rendering.records import log_reports
    from tuner.errors import RequestError
    from tuner.formatting import counted
    from tuner.interrupts import interruptible
    from tuner.tuning_logs.files import DAMAGED
    from tuner.tuning_logs.import_log import ImportRequest

    log_files.check_format(form, "auto", "tuner")
    places = {"--database": database, "--data-dir": data_dir}
    verify = hints.command("records verify", options=places, is_local=True)
    with ExitStack() as stack:
        form, stream = log_files.open_records(stack, file, form)
        if form != "tuner":
            if trust:
                raise RequestError("--trust is for logs of the tuner, which verified its records")
            request = ImportRequest(file, form, target, foreign)
            report = _import_log(request, stream, database, data_dir)
            log_reports.report_import(file, report, verify, json_output=json_output)
            return
        stack.enter_context(interruptible())
        lines = TextIOWrapper(cast("BinaryIO", stream), encoding="utf-8", newline="\n")
        backend = stack.enter_context(open_backend(database, data_dir))
        try:
            imported = backend.import_(lines, file, trust=trust)
        except DAMAGED as error:
            raise RequestError(f"cannot import {file}: {error}; nothing was imported") from error
    if json_output:
        print_json({"file": file, **vars(imported)})
        return
    torn = ", the torn last line was left out" if imported.torn else ""
    refused = f", {imported.refused} refused" if imported.refused else ""
    counts = f"{counted(imported.added, 'record')} added, {imported.known} known"
    print_line(f"imported {file}: {counts}{refused}{torn}")
    for refusal in imported.refusals:
        print_note(f"refused with its records: {refusal}")
    if imported.added and not trust:
        where = "here" if connection.chosen() is None else "on the machine of the service"
        print_note(f"they are claims: `{verify}` measures the fastest ones {where}")


def _export_log(
    file: str, request: "ExportRequest", database: str | None, data_dir: Path | None
) -> "Exported":
    from tuner.cli.commands.records import log_files
    from tuner.context import open_context
    from tuner.interrupts import interruptible
    from tuner.tuning_logs.export_log import export_log

    connection.refuse(f"records export --format {request.format}")
    with (
        interruptible(only_waiting=True),
        open_context(database, data_dir) as context,
        log_files.open_writer(file, request.format) as writer,
    ):
        return export_log(context, request, writer, streams.ProgressCounter("{} so far", "record"))


def _import_log(
    request: "ImportRequest",
    stream: IO[bytes],
    database: str | None,
    data_dir: Path | None,
) -> "LogImportReport":
    from tuner.context import open_context
    from tuner.interrupts import interruptible
    from tuner.tuning_logs.import_log import import_log

    connection.refuse(f"records import --format {request.format}")
    with interruptible(only_waiting=True), open_context(database, data_dir) as context:
        return import_log(context, request, stream, streams.ProgressCounter("{} so far", "line"))
