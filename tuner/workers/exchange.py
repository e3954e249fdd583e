"""Folders in which this process and the workers of one pool hand each other files."""

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tuner.errors import MalformedAnswer


@dataclass(frozen=True)
class OutputFolder:
    """A folder that a worker writes.

    It is reached by a descriptor, opened before the worker knew of the folder: the worker may put
    a link to a folder of the user in its place.

    Attributes:
        descriptor: The folder that was made.
    """

    path: Path
    descriptor: int

    def open(self, name: str) -> IO[bytes]:
        """Open a file that a worker made.

        Raises:
            MalformedAnswer: If it is not a file.
            OSError: If it cannot be opened, as it is a link.
        """
        if Path(name).name != name:
            raise MalformedAnswer(f"a worker named {name!r}, which is not in its folder")
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(name, flags, dir_fd=self.descriptor)
        try:
            _check_file(os.fstat(descriptor), name)
        except MalformedAnswer:
            os.close(descriptor)
            raise
        return os.fdopen(descriptor, "rb")

    def read(self, name: str, max_bytes: int) -> bytes:
        """Read a file that a worker made, and may still write.

        Raises:
            MalformedAnswer: If it is not a file, or too large.
            OSError: If it cannot be read.
        """
        with self.open(name) as stream:
            n_bytes = os.fstat(stream.fileno()).st_size
            if n_bytes > max_bytes:
                raise MalformedAnswer(f"a worker made {name}, which is too large")
            return stream.read(n_bytes)

    def take(self, into: Path, names: Collection[str] | None = None) -> None:
        """Move files that a worker made into a folder that no worker writes.

        Args:
            into: Folder to move them to.
            names: Names of the files, others stay; None for all.

        Raises:
            MalformedAnswer: If one is missing, or is anything else, such as a link to a file
                elsewhere.
            OSError: If they cannot be moved.
        """
        made = set(os.listdir(self.descriptor))  # noqa: PTH208  a path may be another's
        if names is not None and not made.issuperset(names):
            raise MalformedAnswer("a worker named other files than it made")
        for name in sorted(made if names is None else set(names)):
            _check_file(os.stat(name, dir_fd=self.descriptor, follow_symlinks=False), name)
            taken = into / name
            try:
                os.rename(name, taken, src_dir_fd=self.descriptor)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                with self.open(name) as source, taken.open("xb") as target:
                    shutil.copyfileobj(source, target)
                os.unlink(name, dir_fd=self.descriptor)
            # The worker may have replaced it since.
            try:
                _check_file(taken.lstat(), name)
            except MalformedAnswer:
                if stat.S_ISDIR(taken.lstat().st_mode):
                    shutil.rmtree(taken)
                else:
                    taken.unlink()
                raise


@dataclass(frozen=True)
class Exchange:
    """Folders of one pool, which the workers of others do not reach.

    A worker may be at the mercy of the model that it reads: what it made is taken out of its reach
    before it is used, see :meth:`OutputFolder.take`.

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
    def new_output(self) -> Iterator[OutputFolder]:
        """Make a folder for files that the workers write."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW
        with _temporary(self.outputs) as folder:
            descriptor = os.open(folder, flags)
            try:
                yield OutputFolder(folder, descriptor)
            finally:
                os.close(descriptor)

    def remove(self) -> None:
        """Remove the folders with all files."""
        shutil.rmtree(self.root, ignore_errors=True)


def _check_file(status: os.stat_result, name: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise MalformedAnswer(f"a worker made {name}, which is not a file")


@contextmanager
def _temporary(parent: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
