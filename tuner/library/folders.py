"""Folders that are replaced as a whole: what was there stays until the new content is complete."""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from tuner.errors import WorkError

_SWAP_ATTEMPTS = 8


def replace_folder(folder: Path, write: Callable[[Path], None]) -> Path:
    """Fill a temporary folder beside ``folder``, then swap it in.

    Whatever ``folder`` held stays until the new content is complete on disk.

    Raises:
        WorkError: If the disk is full or not writable; ``folder`` is as before.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise WorkError(f"cannot write {folder}: {error.strerror or error}") from error
    try:
        write(made)
        _sync(made)
        _swap_or_retry(made, folder)
    except OSError as error:
        raise WorkError(f"cannot write {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def _sync(folder: Path) -> None:
    for path in folder.iterdir():
        with path.open("rb") as stream:
            os.fsync(stream.fileno())


def _swap_or_retry(made: Path, folder: Path) -> None:
    """Swap; another writer of the same folder may be between its two renames right now."""
    for _ in range(_SWAP_ATTEMPTS):
        try:
            _swap(made, folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise
        else:
            return
    _swap(made, folder)


def _swap(made: Path, folder: Path) -> None:
    made.chmod(0o755)
    if not folder.exists():
        made.rename(folder)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old.", dir=folder.parent))
    folder.rename(old / folder.name)
    try:
        made.rename(folder)
    except OSError:
        (old / folder.name).rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)
