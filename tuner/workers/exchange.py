"""Folders in which this process and the workers of one pool hand each other files."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import MalformedAnswer


@dataclass(frozen=True)
class Exchange:
    """Folders of one pool, which the workers of others do not reach.

    A worker may be at the mercy of the model that it reads: what it made is taken out of its reach
    before it is used, see :func:`take`.

    Attributes:
        root: Folder with both; removed with the pool.
    """

    root: Path

    @property
    def inputs(self) -> Path:
        """Folder that the workers read."""
        return self.root / "inputs"

    @property
    def outputs(self) -> Path:
        """Folder that the workers read and write."""
        return self.root / "outputs"

    def make(self) -> None:
        """Make the folders: only what exists can be permitted."""
        for folder in (self.inputs, self.outputs):
            folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def new_input(self) -> Iterator[Path]:
        """Make a folder for files that the workers read."""
        with _temporary(self.inputs) as folder:
            yield folder

    @contextmanager
    def new_output(self) -> Iterator[Path]:
        """Make a folder for files that the workers write."""
        with _temporary(self.outputs) as folder:
            yield folder

    def remove(self) -> None:
        """Remove the folders with all files."""
        shutil.rmtree(self.root, ignore_errors=True)


def take(made: Path, into: Path) -> None:
    """Move the files that a worker made into a folder that no worker writes.

    Raises:
        MalformedAnswer: If there is anything else, such as a link to a file elsewhere.
        OSError: If they cannot be moved.
    """
    for path in sorted(made.iterdir()):
        taken = into / path.name
        if path.is_symlink() or not path.is_file():
            raise MalformedAnswer(f"a worker made {path.name}, which is not a file")
        shutil.move(path, taken)
        # The worker may have replaced it since.
        if taken.is_symlink() or not taken.is_file():
            raise MalformedAnswer(f"a worker made {path.name}, which is not a file")


@contextmanager
def _temporary(parent: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
