"""The gate of a CPU that is measured and used by builders in turns."""

import asyncio

from tuner.devices.cpu_gate import CpuGate


class Work:
    """Background work that notes when it is paused and resumed."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def pause(self) -> None:
        """Note a pause."""
        self.events.append("pause")

    def resume(self) -> None:
        """Note a resumption."""
        self.events.append("resume")


def test_background_work_pauses_while_the_cores_are_measured() -> None:
    """A measurement does not wait for it; work that begins in a measurement waits at once."""

    async def run() -> tuple[list[str], list[str]]:
        gate, early, late = CpuGate(), Work(), Work()
        with gate.background(early):
            async with gate.exclusive():
                assert early.events == ["pause"]
                with gate.background(late):
                    assert late.events == ["pause"]
            async with gate.shared():
                pass
        return early.events, late.events

    early, late = asyncio.run(run())

    assert early == ["pause", "resume", "resume"]
    assert late == ["pause", "resume"]


def test_work_waits_for_a_measurement_and_a_measurement_for_work() -> None:
    """Neither begins before the other has ended."""

    async def run() -> list[str]:
        gate, order = CpuGate(), []

        async def work(name: str) -> None:
            async with gate.shared():
                order.append(f"{name} begins")
                await asyncio.sleep(0.01)
                order.append(f"{name} ends")

        async def measure() -> None:
            async with gate.exclusive():
                order.append("measurement begins")
                await asyncio.sleep(0.01)
                order.append("measurement ends")

        first = asyncio.create_task(work("first"))
        await asyncio.sleep(0)
        measuring = asyncio.create_task(measure())
        await asyncio.sleep(0)
        second = asyncio.create_task(work("second"))
        await asyncio.gather(first, measuring, second)
        return order

    assert asyncio.run(run()) == [
        "first begins",
        "first ends",
        "measurement begins",
        "measurement ends",
        "second begins",
        "second ends",
    ]
