"""Files that workers make are taken out of their reach, and nothing else."""

import os
from pathlib import Path

import pytest

from tuner.errors import MalformedAnswer
from tuner.workers.exchange import Exchange, take


@pytest.fixture
def exchange(tmp_path: Path) -> Exchange:
    """Folders of a pool."""
    made = Exchange(tmp_path / "pool")
    made.make()
    return made


def test_files_are_moved(exchange: Exchange, tmp_path: Path) -> None:
    """The folders are empty afterwards, and go."""
    into = tmp_path / "into"
    into.mkdir()
    with exchange.new_output() as made, exchange.new_input():
        (made / "code.o").write_text("code")
        take(made, into)
        assert not list(made.iterdir())

    assert (into / "code.o").read_text() == "code"
    assert not [*exchange.inputs.iterdir(), *exchange.outputs.iterdir()]
    exchange.remove()
    assert not exchange.root.exists()


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_not_a_file_is_refused(exchange: Exchange, tmp_path: Path, kind: str) -> None:
    """A link would publish a file that the worker cannot read, and a pipe would block."""
    secret, into = tmp_path / "secret", tmp_path / "into"
    secret.write_text("secret")
    into.mkdir()
    with exchange.new_output() as made:
        odd = made / "code.o"
        if kind == "link":
            odd.symlink_to(secret)
        elif kind == "pipe":
            os.mkfifo(odd)
        else:
            odd.mkdir()

        with pytest.raises(MalformedAnswer, match=r"code\.o, which is not a file"):
            take(made, into)

    assert not list(into.iterdir())
    assert secret.read_text() == "secret"
