"""Blocking work of the service, in threads beside a measurement that must not be disturbed."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from tuner.devices.cpu_gate import CpuGate
from tuner.tuning.event_loop import run_in_thread
from tuner.workers.processes.pause_group import PauseGroup

Result = TypeVar("Result")

# Interval between two looks at whether the result of work is still wanted.
_CHECK_INTERVAL_SECS = 0.5


async def run_between_measurements(gate: CpuGate, work: Callable[[], Result], name: str) -> Result:
    """Run work of a second or so: it waits for a measurement to end, and the next one for it."""
    async with gate.shared():
        return await run_in_thread(work, name)


async def run_beside_measurements(
    gate: CpuGate, work: Callable[[], Result], name: str, is_wanted: Callable[[], bool]
) -> Result:
    """Run work that worker processes do; they pause while the cores are measured.

    Measurements do not wait for the work, and the work continues whenever a round searches or
    builds. The thread itself, which mostly waits for its workers, does not pause.

    Args:
        gate: The cores that are measured.
        name: Name of its thread.
        is_wanted: Looks, in a thread, whether the result is still wanted; otherwise the processes
            are killed, and the work fails. They are killed as well if it raises, or if
            this is cancelled.
    """
    pools = PauseGroup()

    def collect_and_run() -> Result:
        with pools.collecting():
            return work()

    async def close_if_unwanted() -> None:
        while await run_in_thread(is_wanted, f"{name}-check"):
            await asyncio.sleep(_CHECK_INTERVAL_SECS)
        await run_in_thread(pools.close, f"{name}-close")

    with gate.background(pools):
        watching = asyncio.create_task(close_if_unwanted(), name=f"{name}-watch")
        working = asyncio.create_task(run_in_thread(collect_and_run, name), name=name)
        try:
            await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()  # an error of the database
            return await working
        finally:
            watching.cancel()
            if not working.done():
                working.cancel()
                await run_in_thread(pools.close, f"{name}-close")
