"""Tuning by a service in the background, and the swap to a better library."""

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
from tests.service.rig import rig
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


def wait_until(condition: Callable[[], bool], secs: float) -> None:
    """Poll until a condition holds."""
    deadline = time.monotonic() + secs
    while not condition():
        assert time.monotonic() < deadline, "the condition did not hold in time"
        time.sleep(0.1)


@pytest.mark.slow("15 s of patience")
def test_an_unreachable_service(jit: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    """The fallback goes on serving, and one warning gives the reason."""
    jitted = jit(lambda x: x + 1.0, service=f"http://127.0.0.1:{free_port()}")

    with caplog.at_level(logging.WARNING, "tuner.jit.background"):
        close(jitted(torch.ones(2)), torch.full((2,), 2.0))
        wait_until(lambda: bool(caplog.records), 60.0)
        close(jitted(torch.ones(2)), torch.full((2,), 2.0))

    (record,) = caplog.records
    assert "the library that serves now stays" in record.getMessage()
    assert jitted.cache_info().fallbacks > 0
    # The request is not current any more, so that the thread ends.
    jitted.cache_clear()
    wait_until(lambda: not background_threads(), 30.0)


@pytest.mark.slow("15 s: another process imports torch and compiles")
def test_a_process_may_end_while_it_waits(data_dir: Path) -> None:
    """Neither the thread nor a worker delays its end or prints a traceback."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(data_dir), f"http://127.0.0.1:{free_port()}"],
        capture_output=True, text=True, cwd=ROOT, timeout=120, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stdout) == (0, "[2.0, 2.0]\n"), done.stderr
    assert "Traceback" not in done.stderr


def test_an_invalid_url() -> None:
    """It is refused when the function is made."""
    with pytest.raises(RequestError):
        tuner.jit(torch.nn.ReLU(), service="not a url")


@pytest.mark.slow("minutes of real tuning by a service")
def test_a_better_library_replaces_the_fallback(tmp_path: Path) -> None:
    """Calls go on while a real service tunes; then, and in the next process, its library serves."""
    module = Perceptron(seed=5).eval()
    x = torch.randn(4, 6)
    expected = eager(module, x)
    with rig(f"sqlite:///{tmp_path / 'service.db'}", tmp_path, is_toy=False) as opened:
        url = opened.serve()
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
    """Return the threads that wait for services."""
    return [thread for thread in threading.enumerate() if thread.name == "tuner-jit-background"]
