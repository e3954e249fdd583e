"""Workers do not get the secrets of the process that starts them."""

from pathlib import Path

import pytest

from tests.tuner.executors import helpers
from tuner.workers.environment import scrubbed
from tuner.workers.pool import Pool, WorkerSettings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TUNER_DATABASE", "sqlite:///x"),
        ("DATABASE_URL", "x"),
        ("PGPASSWORD", "x"),
        ("PGHOST", "x"),
        ("TUNER_TOKEN", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "x"),
        ("OPENAI_API_KEY", "x"),
        ("MY_STORE", "https://me:secret@example.com/cache"),
    ],
)
def test_what_may_be_a_secret_is_left_out(name: str, value: str) -> None:
    """By its name, or by a password in a URL."""
    assert scrubbed({name: value, "PATH": "/bin"}) == {"PATH": "/bin"}


@pytest.mark.parametrize(
    "name",
    ["PATH", "HOME", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "TVM_LOG_DEBUG", "PYTHONPATH"],
)
def test_what_programs_need_stays(name: str) -> None:
    """Compilers, drivers and Python find what they need."""
    assert scrubbed({name: "/x:/y"}) == {name: "/x:/y"}


def test_a_worker_never_had_the_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not even in the memory that the kernel filled when it started."""
    monkeypatch.setenv("TUNER_DATABASE", "postgresql://me:secret@db/tuner")
    monkeypatch.setenv("TOY_SETTING", "kept")
    with Pool(WorkerSettings(1, tmp_path / "worker.log")) as pool:
        first = pool.call(helpers.NAME, "read_text", "/proc/self/environ")
        kept = pool.call(helpers.NAME, "environ", "TOY_SETTING")

    assert "me:secret" not in first
    assert kept == "kept"
