"""Packs that a service offers: GPUs elsewhere lease and measure them, and their results arrive."""

import json
import shutil
import zipfile
from collections.abc import Mapping
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from records.service import offered_packs
from records.service.service_models import OfferedPack
from tuner.context import Context
from tuner.errors import RequestError
from tuner.files.atomic_files import atomic_file
from tuner.formatting import age, counted
from tuner.library.manifest import sha256_of
from tuner.packs import registry, result_lines
from tuner.packs.archive import PackWriter
from tuner.packs.import_results import check_header, identity_of, store_finals, store_results
from tuner.packs.registry import RegisteredPack
from tuner.packs.runner.contents import INDEX
from tuner.tuning.writing.storage_retry import sessions_with_retry

#: Folder in the data directory with offered packs: containers share archives.
FOLDER = "archives/packs"
#: Size of the lines of one request.
MAX_PORTION_CHARS = 512 << 10
# Size of the results of a pack: that of a candidate, and what finals write in addition.
_MAX_CANDIDATE_CHARS, _MAX_OTHER_CHARS = 4 << 10, 4 << 20
# The API is another user of the same group.
_MODE = 0o640


def offer_pack(context: Context, path: Path, minutes: float) -> OfferedPack:
    """Offer a pack that was made with this data directory to GPUs elsewhere.

    Args:
        context: Settings and database.
        minutes: Time for which a GPU measures.

    Raises:
        RequestError: If the file is not such a pack.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            name = str(json.loads(archive.read(INDEX))["id"])
    except (zipfile.BadZipFile, ValueError, LookupError) as error:
        raise RequestError(f"{path} is not a pack") from error
    pack = registry.load(context.settings.data_dir, name)
    folder = context.settings.data_dir / FOLDER
    folder.mkdir(mode=0o750, parents=True, exist_ok=True)
    file = file_of(context.settings.data_dir, name)
    with path.open("rb") as source, atomic_file(file, _MODE) as stream:
        shutil.copyfileobj(source, stream)
    registry.store_in(folder, pack, _MODE)
    row = OfferedPack(
        pack=name,
        sha256=sha256_of(file),
        n_bytes=file.stat().st_size,
        capabilities=list(pack.capabilities),
        minutes=minutes,
    )
    with sessions_with_retry(context).begin() as session:
        offered_packs.offer(session, row)
    return row


def file_of(data_dir: Path, pack: str) -> Path:
    """Return the file of an offered pack."""
    return data_dir / FOLDER / f"{pack}.pyz"


def state_of(row: OfferedPack) -> str:
    """Describe what became of an offered pack, for people."""
    if row.ended is not None:
        return f"measured by {(row.gpu or {}).get('name', 'no GPU')}, {age(row.ended)}"
    problem = f"; {row.problem}" if row.problem else ""
    lines = f"{counted(row.n_lines, 'line')} of results"
    if row.device is not None:
        n_attempts = sum(row.attempts.values())
        attempt = f"attempt {n_attempts} of all GPUs, " if n_attempts > 1 else ""
        return f"leased by {row.device}, {attempt}{lines}{problem}"
    if offered_packs.is_given_up(row):
        return f"given up after {offered_packs.MAX_ALL_ATTEMPTS} attempts, {lines}{problem}"
    n_gpus = sum(each >= offered_packs.MAX_ATTEMPTS for each in row.attempts.values())
    given_up = (
        f", given up by {counted(n_gpus, 'GPU')} after {offered_packs.MAX_ATTEMPTS} attempts"
        if n_gpus
        else ""
    )
    return f"offered{given_up}, {lines}{problem}"


def store_portion(
    session: Session,
    data_dir: Path,
    row: OfferedPack,
    gpu: Mapping[str, Any],
    lines: tuple[int, str],
) -> None:
    """Store lines of the results of a pack, and their records; those that are known are left out.

    Args:
        row: The pack, which a process has leased.
        gpu: The GPU of that process.
        lines: Number of the first line, and the lines.

    Raises:
        RequestError: If a line is damaged, too many arrive, or lines are missing before them.
    """
    first, text = lines
    if first > row.n_lines:
        raise RequestError(f"lines {row.n_lines} to {first - 1} of pack {row.pack} are missing")
    new = text.encode().splitlines(keepends=True)[row.n_lines - first :]
    if not new:
        return
    pack = _registered(data_dir, row.pack)
    content = b"".join(new)
    rows, n_bytes = result_lines.load(pack.key, content)
    if n_bytes < len(content):
        raise RequestError(f"line {row.n_lines + len(rows)} of pack {row.pack} is damaged")
    if row.n_lines == 0:
        check_header(pack, rows)
        row.gpu = dict(gpu)
    if any("device" in each for each in rows[row.n_lines == 0 :]):
        raise RequestError(f"the results of pack {row.pack} have another header")
    n_sources = sum(map(len, pack.sources.values()))
    limit = _MAX_OTHER_CHARS + _MAX_CANDIDATE_CHARS * (pack.n_candidates + n_sources)
    if offered_packs.n_chars(session, row.pack) + len(content) > limit:
        raise RequestError(f"the results of pack {row.pack} have more than {limit} bytes")
    _, records = store_results(session, pack, identity_of(gpu, pack)[0], rows)
    lines_of = [line.decode() for line in new]
    offered_packs.add_lines(session, row, lines_of, have_results=bool(records))


def end_pack(session: Session, data_dir: Path, row: OfferedPack) -> None:
    """End a pack whose results are complete: finals in its networks choose the best records."""
    if row.gpu is not None:
        pack = _registered(data_dir, row.pack)
        content = offered_packs.lines_of(session, row.pack).encode()
        device, _ = identity_of(row.gpu, pack)
        store_finals(session, pack, device, result_lines.load(pack.key, content)[0])
    offered_packs.end(session, row)


@cache
def runner_program() -> bytes:
    """Return the program that measures packs of a service, which is a pack without candidates."""
    stream = BytesIO()
    PackWriter(stream).close({"format": result_lines.FORMAT})
    return stream.getvalue()


def _registered(data_dir: Path, pack: str) -> RegisteredPack:
    return registry.load_from(data_dir / FOLDER, pack)
