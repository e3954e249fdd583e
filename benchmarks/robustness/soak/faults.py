"""Faults of a soak test: killed processes, a full disk, a database that is away."""

import asyncio
import contextlib
import os
import random
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.workers import is_worker

ROLES = ("api", "coordinator", "child")
_AWAY_SECS = (5.0, 20.0)
_FULL_SECS = 15.0


@dataclass(frozen=True)
class Plan:
    """Times of faults, seconds after the start.

    Attributes:
        secs: Duration of the whole test.
        kill_interval_secs: Seconds between two kills.
        calm_share: Part at the end without faults, in which memory is watched.
    """

    secs: float
    kill_interval_secs: float = 20.0
    calm_share: float = 0.25

    def due(self) -> list[tuple[float, str]]:
        """Return the faults in order: the database goes away three times, the disk fills twice."""
        end = self.secs * (1.0 - self.calm_share)
        kills = int(end / self.kill_interval_secs)
        faults = [((number + 0.5) * self.kill_interval_secs, "kill") for number in range(kills)]
        faults += [(end * share, "database") for share in (0.2, 0.5, 0.8)]
        faults += [(end * share, "disk") for share in (0.35, 0.65)]
        return sorted(fault for fault in faults if fault[0] < end)


@dataclass
class Faults:
    """Brings faults about at their times.

    Attributes:
        pid: Process of ``tuner serve``, whose descendants are killed.
        server: PostgreSQL server.
        disk: Small disk that is filled; None if there is none.
        draw: Choice of processes and durations.
        done: Number of faults by kind.
        stopping: Set to end the faults that are under way, and to begin no other.
    """

    pid: int
    server: Any
    disk: Path | None
    draw: random.Random
    done: Counter[str] = field(default_factory=Counter)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, plan: Plan, note: Callable[[str], None]) -> None:
        """Bring about the faults of a plan; those of different kinds may overlap."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        acts: dict[str, Callable[[], Awaitable[str]]] = {
            "kill": self._kill,
            "database": self._take_database_away,
            "disk": self._fill_disk,
        }

        async def act(kind: str) -> None:
            note(await acts[kind]())

        async with asyncio.TaskGroup() as group:
            for at, kind in plan.due():
                await self._pause(began + at - loop.time())
                if self.stopping.is_set():
                    return
                group.create_task(act(kind))

    async def _pause(self, secs: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stopping.wait(), max(secs, 0.0))

    async def _kill(self) -> str:
        processes = by_role(self.pid)
        role = self.draw.choice(ROLES)
        victims = processes.get(role, [])
        if not victims:
            return "nothing to kill"
        victim = self.draw.choice(victims)
        with contextlib.suppress(psutil.Error):
            victim.kill()
        self.done[f"kill {role}"] += 1
        return f"killed {role} {victim.pid}"

    async def _take_database_away(self) -> str:
        secs = self.draw.uniform(*_AWAY_SECS)
        await asyncio.to_thread(self.server.stop)
        await self._pause(secs)
        await asyncio.to_thread(self.server.start)
        self.done["database away"] += 1
        return f"the database was away for {secs:.0f} s"

    async def _fill_disk(self) -> str:
        if self.disk is None:
            return "the disk stays: filling it takes root"
        ballast = self.disk / "ballast"
        try:
            for _ in range(int(_FULL_SECS * 2)):
                # What was under way when it filled up leaves some bytes behind.
                await asyncio.to_thread(fill, ballast)
                await self._pause(0.5)
        finally:
            ballast.unlink()
        self.done["disk full"] += 1
        return f"the disk was full for {_FULL_SECS:.0f} s"


def by_role(pid: int) -> dict[str, list[psutil.Process]]:
    """Return the processes below ``tuner serve`` by role; others are those of compilers."""
    roles: dict[str, list[psutil.Process]] = {}
    try:
        processes = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return roles
    for process in processes:
        try:
            roles.setdefault(_role(process), []).append(process)
        except psutil.Error:
            continue
    return roles


def _role(process: psutil.Process) -> str:
    words = " ".join(process.cmdline())
    if " -m api" in words:
        return "api"
    if " -m tuner worker" in words:
        return "coordinator"
    return "child" if is_worker(process) else "other"


def fill(ballast: Path) -> None:
    """Fill a disk to its last byte with a file, or with more of it."""
    with ballast.open("ab", buffering=0) as stream:
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    stream.write(b"x" * size)


@contextlib.contextmanager
def small_disk(folder: Path, n_bytes: int) -> Iterator[bool]:
    """Mount a disk in memory on a folder; yields False where that is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    options = ["-t", "tmpfs", "-o", f"size={n_bytes}", "tmpfs", str(folder)]
    mounted = (
        os.geteuid() == 0
        and not subprocess.run(["mount", *options], check=False, capture_output=True).returncode
    )
    try:
        yield mounted
    finally:
        if mounted:
            # Lazily: a process that was killed may have files open for a moment.
            subprocess.run(["umount", "--lazy", str(folder)], check=False)
