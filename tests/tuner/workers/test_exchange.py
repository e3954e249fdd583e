"""Files that workers make are taken out of their reach, and nothing else."""

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tuner.workers.inside_sandbox import replace_folder
from tuner.errors import MalformedAnswer
from tuner.settings import Settings, read_settings
from tuner.workers.exchange import Exchange
from tuner.workers.factory import compiler_pool, fresh_worker
from tuner.workers.pool import Pool


@pytest.fixture
def exchange(tmp_path: Path) -> Exchange:
    """Folders of a pool."""
    made = Exchange(tmp_path / "pool")
    made.make()
    return made


@pytest.fixture
def into(tmp_path: Path) -> Path:
    """A folder for what is taken."""
    folder = tmp_path / "into"
    folder.mkdir()
    return folder


def test_files_are_moved(exchange: Exchange, into: Path) -> None:
    """The folders are empty afterwards, and go."""
    with exchange.new_output() as made, exchange.new_input():
        (made.path / "code.o").write_text("code")
        made.take(into)
        assert not list(made.path.iterdir())

    assert (into / "code.o").read_text() == "code"
    assert not [*exchange.inputs.iterdir(), *exchange.outputs.iterdir()]
    exchange.remove()
    assert not exchange.root.exists()


def test_files_are_moved_to_another_file_system(exchange: Exchange) -> None:
    """The build cache may be on a disk that is full."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or memory.stat().st_dev == exchange.root.stat().st_dev:
        pytest.skip("there is one file system")
    with exchange.new_output() as made, tempfile.TemporaryDirectory(dir=memory) as name:
        (made.path / "code.o").write_text("code")
        made.take(Path(name))

        assert (Path(name) / "code.o").read_text() == "code"
        assert not list(made.path.iterdir())


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_not_a_file_is_refused(
    exchange: Exchange, tmp_path: Path, into: Path, kind: str
) -> None:
    """A link would publish a file that the worker cannot read, and a pipe would block."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    with exchange.new_output() as made:
        odd = made.path / "code.o"
        if kind == "link":
            odd.symlink_to(secret)
        elif kind == "pipe":
            os.mkfifo(odd)
        else:
            odd.mkdir()

        with pytest.raises(MalformedAnswer, match=r"code\.o, which is not a file"):
            made.take(into)

    assert not list(into.iterdir())
    assert secret.read_text() == "secret"


def test_a_replaced_folder_is_not_followed(exchange: Exchange, tmp_path: Path, into: Path) -> None:
    """A link in its place would have the files of the user moved."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "notes").write_text("secret")
    with exchange.new_output() as made:
        (made.path / "code.o").write_text("code")
        replace_folder(str(made.path), str(own))

        made.take(into)
        with pytest.raises(FileNotFoundError):
            made.read("notes", 100)

    assert [path.name for path in into.iterdir()] == ["code.o"]
    assert (own / "notes").read_text() == "secret"


def test_files_of_other_names_stay(exchange: Exchange, into: Path) -> None:
    """A library has the files that its linker names, all of them."""
    with exchange.new_output() as made:
        for name in ("lib.so", "extra"):
            (made.path / name).write_text("x")

        with pytest.raises(MalformedAnswer, match="other files than it made"):
            made.take(into, ("lib.so", "weights.bin"))
        made.take(into, ("lib.so",))

    assert [path.name for path in into.iterdir()] == ["lib.so"]


def test_reading_is_limited(exchange: Exchange) -> None:
    """Neither a large file nor one of another folder is read."""
    with exchange.new_output() as made:
        (made.path / "outputs").write_text("four")
        (made.path.parent / "others").write_text("x")

        assert made.read("outputs", 4) == b"four"
        with pytest.raises(MalformedAnswer, match="too large"):
            made.read("outputs", 3)
        with pytest.raises(MalformedAnswer, match="not in its folder"):
            made.read("../others", 4)


@pytest.mark.parametrize("open_pool", [compiler_pool, fresh_worker])
def test_a_pool_that_cannot_be_made_leaves_no_folders(
    open_pool: Callable[[Settings], Pool], tmp_path: Path
) -> None:
    """They would stay until the cache is cleaned; here a file is where the logs go."""
    settings = replace(read_settings({"data_dir": tmp_path}, {}), cache_dir=tmp_path / "cache")
    (tmp_path / "logs").touch()

    with pytest.raises(FileExistsError):
        open_pool(settings)

    assert not list((tmp_path / "cache").rglob("inputs"))
    assert not list((tmp_path / "cache").rglob("outputs"))
