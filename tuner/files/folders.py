"""Replace folders as a whole: the old content stays until the new one is complete."""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from tuner.errors import WorkError

_MAX_SWAPS = 8


def replace_folder(folder: Path, write: Callable[[Path], None]) -> Path:
    """Fill a temporary folder in the parent of ``folder``, then swap it in.

    The old content of ``folder`` stays until the new content is complete on disk.

    Raises:
        WorkError: If the disk is full or not writable; ``folder`` is unchanged.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise WorkError(f"cannot write {folder}: {error.strerror or error}") from error
    try:
        write(made)
        for path in made.iterdir():
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
        _swap_or_retry(made, folder)
    except OSError as error:
        raise WorkError(f"cannot write {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def _swap_or_retry(made: Path, folder: Path) -> None:
    """Swap, again if another writer of the same folder is between its two renames."""
    for _ in range(_MAX_SWAPS):
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
