"""Blocking work of the service, in threads beside a measurement that must not be disturbed."""

from collections.abc import Callable
from typing import TypeVar

from tuner.devices.cpu_gate import CpuGate
from tuner.tuning.event_loop import run_in_thread
from tuner.workers.pause_group import PauseGroup

Result = TypeVar("Result")


async def run_between_measurements(gate: CpuGate, work: Callable[[], Result], name: str) -> Result:
    """Run work of a second or so: it waits for a measurement to end, and the next one for it."""
    async with gate.shared():
        return await run_in_thread(work, name)


async def run_beside_measurements(gate: CpuGate, work: Callable[[], Result], name: str) -> Result:
    """Run work that worker processes do; they pause while the cores are measured.

    Measurements do not wait for the work, and the work continues whenever a round searches or
    builds. The thread itself, which mostly waits for its workers, does not pause.
    """
    pools = PauseGroup()

    def collect_and_run() -> Result:
        with pools.collecting():
            return work()

    with gate.background(pools):
        return await run_in_thread(collect_and_run, name)
