"""What has no records is tuned by a service meanwhile, and the better library takes its place."""

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tuner
from records.models import Job
from tests.cli import ROOT
from tests.service.rig import rig, serve
from tests.services import free_port
from tests.tuner.jit.modules import Perceptron, close, eager
from tuner.errors import RequestError

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore:::tvm")]

_SCRIPT = """
import sys
import torch, tuner
jitted = tuner.jit(lambda x: x + 1.0, data_dir=sys.argv[1], service=sys.argv[2])
print(jitted(torch.ones(2)).tolist())
"""


def wait_until(holds: Callable[[], bool], secs: float) -> None:
    """Wait for something that happens in another thread."""
    deadline = time.monotonic() + secs
    while not holds():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.1)


@pytest.mark.slow("15 s of patience")
def test_a_service_that_is_not_there(
    jit: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The fallback goes on serving, and the log says why, once."""
    jitted = jit(lambda x: x + 1.0, service=f"http://127.0.0.1:{free_port()}")

    with caplog.at_level(logging.WARNING, "tuner.jit.background"):
        close(jitted(torch.ones(2)), torch.full((2,), 2.0))
        wait_until(lambda: bool(caplog.records), 60.0)
        close(jitted(torch.ones(2)), torch.full((2,), 2.0))

    (record,) = caplog.records
    assert "the library that serves now stays" in record.getMessage()
    assert jitted.cache_info().fallbacks > 0
    # Nobody wants it any more: the thread ends.
    jitted.cache_clear()
    wait_until(lambda: not background_threads(), 30.0)


def test_a_process_ends_while_it_waits(data_dir: Path) -> None:
    """Neither the thread nor a worker holds it up, nor do they say anything."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(data_dir), f"http://127.0.0.1:{free_port()}"],
        capture_output=True, text=True, cwd=ROOT, timeout=120, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stdout) == (0, "[2.0, 2.0]\n"), done.stderr
    assert "Traceback" not in done.stderr


def test_a_url_that_is_none() -> None:
    """Misuse is said at once."""
    with pytest.raises(RequestError):
        tuner.jit(torch.nn.ReLU(), service="not a url")


@pytest.mark.slow("minutes of real tuning by a service")
def test_a_better_library_takes_the_place(tmp_path: Path) -> None:
    """Real service: calls go on while it tunes, then the tuned library serves, also next time."""
    module = Perceptron(seed=5).eval()
    x = torch.randn(4, 6)
    expected = eager(module, x)
    with rig(f"sqlite:///{tmp_path / 'service.db'}", tmp_path, is_toy=False) as opened:
        _, url = serve(opened)
        options: Any = {"data_dir": tmp_path / "here", "service": url, "trials": 8}
        jitted = tuner.jit(module, **options)
        close(jitted(x), expected)
        assert jitted.cache_info().fallbacks > 0

        def is_swapped() -> bool:
            close(jitted(x), expected)
            return bool(jitted.cache_info().swaps == 1)

        wait_until(is_swapped, 300.0)
        assert jitted.cache_info().fallbacks == 0
        assert jitted.refresh() == 0

        again = tuner.jit(module, **options)
        close(again(x), expected)
        wait_until(lambda: again.cache_info().swaps == 1, 60.0)
        assert len(opened.all(Job.id)) == 1


def background_threads() -> list[threading.Thread]:
    """Threads that wait for services."""
    return [each for each in threading.enumerate() if each.name == "tuner-jit-background"]
