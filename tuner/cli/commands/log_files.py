"""The files of logs, as commands open them."""

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
from tuner.tuning_logs.formats import FORMATS, recognise
from tuner.tuning_logs.writers import AnsorWriter, MetaScheduleWriter, Writer


def check_format(form: str, *others: str) -> None:
    """Refuse a format that is unknown.

    Raises:
        RequestError: If it is neither that of another tool nor one of ``others``.
    """
    known = [*others, *FORMATS]
    if form not in known:
        raise RequestError(f"--format must be one of {', '.join(known)}, got {form!r}")


def open_records(stack: ExitStack, file: str, form: str) -> tuple[str, IO[bytes]]:
    """Open the records of a log until the stack is left.

    Returns:
        The format, by what is in the log if ``form`` is auto, and the stream of its lines.

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
    """Open what an export in the format of another tool writes; it appears when it is whole.

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
    """Open the files of workloads and records of a MetaSchedule database that is written.

    Records number their workloads: those of one database are never beside the workloads of
    another, whatever fails and whenever.

    Raises:
        RequestError: If there can be no such folder.
    """
    if folder == streams.STANDARD:
        raise RequestError("a MetaSchedule database is two files in a folder, and no stream")
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
    """Copy the text of a file, in memory that does not grow with it.

    Raises:
        RequestError: If it cannot be read, or is no text.
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
