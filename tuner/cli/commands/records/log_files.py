"""Log files of every format, opened for commands."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import IO, BinaryIO, cast

from tuner.cli import streams
from tuner.errors import RequestError
from tuner.tuning_logs import metaschedule
from tuner.tuning_logs.files import DAMAGED, open_log
from tuner.tuning_logs.formats import FORMATS, AnsorWriter, MetaScheduleWriter, Writer, recognise


def check_format(form: str, *others: str) -> None:
    """Check that a format is known.

    Raises:
        RequestError: If it is neither a format of another tool nor one of ``others``.
    """
    names = [*others, *FORMATS]
    if form not in names:
        raise RequestError(f"--format must be one of {', '.join(names)}, got {form!r}")


def open_records(stack: ExitStack, file: str, form: str) -> tuple[str, IO[bytes]]:
    """Open the records of a log for as long as the stack is open.

    Returns:
        The format, recognised from the content if ``form`` is auto, and the stream of lines.

    Raises:
        RequestError: If it cannot be read.
    """
    if form == "auto" and Path(file).is_dir() and (Path(file) / metaschedule.RECORDS).exists():
        form = metaschedule.NAME
    if form == "auto":
        stream = stack.enter_context(open_log(file))
        form = recognise(stream)
        if form != metaschedule.NAME:
            return form, stream
    path = file if form != metaschedule.NAME else str(metaschedule.files_of(file)[1])
    return form, stack.enter_context(open_log(path))


@contextmanager
def open_writer(file: str, form: str) -> Iterator[Writer]:
    """Open a log in the format of another tool; it appears only when it is complete.

    Raises:
        RequestError: If it cannot be written.
    """
    if form == metaschedule.NAME:
        with open_folder(file) as (workloads, records):
            yield MetaScheduleWriter(workloads.write, records.write)
    else:
        with streams.output(file) as stream:
            yield AnsorWriter(stream.write)


@contextmanager
def open_folder(folder: str) -> Iterator[tuple[IO[str], IO[str]]]:
    """Open the two files of a MetaSchedule database, workloads and records, for writing.

    Records refer to workloads by number, so the records of one database are never left with the
    workloads of another, whichever step fails.

    Raises:
        RequestError: If the folder cannot be created.
    """
    if folder == streams.STANDARD:
        raise RequestError("a MetaSchedule database is two files; name a folder instead of -")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f"cannot write {folder}: {error.strerror}") from error
    paths = [str(Path(folder) / name) for name in (metaschedule.WORKLOADS, metaschedule.RECORDS)]
    with streams.output(paths[0]) as workloads, streams.output(paths[1]) as records:
        yield workloads, records
        for stream in (workloads, records):
            stream.flush()
        Path(paths[0]).resolve().unlink(missing_ok=True)


def copy(file: Path, into: IO[str]) -> None:
    """Copy a text file in constant memory.

    Raises:
        RequestError: If it cannot be read, or is not UTF-8.
    """
    try:
        with (
            open_log(str(file)) as stream,
            TextIOWrapper(cast("BinaryIO", stream), "utf-8", newline="") as text,
        ):
            shutil.copyfileobj(text, into)
    except UnicodeDecodeError as error:
        raise RequestError(f"cannot read {file}: it is not UTF-8: {error.reason}") from error
    except DAMAGED as error:
        raise RequestError(f"cannot read {file}: {error}") from error
