"""A process that competes for the cores is seen, as far as Linux accounts waiting."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tuner.devices import cpu_contention
from tuner.devices.cpu_contention import Reading

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="this system does not account waiting"
)


def test_rivals_on_every_core_make_this_process_wait() -> None:
    """Two busy processes for each core leave this one less than the time that passes."""
    n_cores = len(os.sched_getaffinity(0))
    rivals = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * n_cores)
    ]
    try:
        time.sleep(0.3)
        before = cpu_contention.read()
        started = time.process_time()
        while time.process_time() - started < 0.2:
            pass
        after = cpu_contention.read()
    finally:
        for rival in rivals:
            rival.kill()
            rival.wait()

    assert after.waited_secs > before.waited_secs
    assert before.is_disturbed_until(after, 0.2)


@pytest.mark.parametrize(
    ("later", "disturbed"),
    [
        (Reading(1.0, 5, 7), False),
        (Reading(1.0 + 0.019e-3, 5, 7), False),
        (Reading(1.0 + 0.021e-3, 5, 7), True),
        (Reading(1.0, 6, 7), True),
        (Reading(1.0, 5, 8), True),
    ],
)
def test_waiting_preemption_and_steal_disturb(later: Reading, disturbed: bool) -> None:
    """A wait counts from a fiftieth of the sample on."""
    assert Reading(1.0, 5, 7).is_disturbed_until(later, 1e-3) is disturbed
