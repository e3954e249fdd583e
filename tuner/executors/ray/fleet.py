"""The agents of a Ray cluster: which there are to be, and who of them makes a call."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from tuner.engines.base import BuildRequest
from tuner.errors import RequestError, WorkerLost, WorkError, summary
from tuner.executors.ray.agent import Parcels, PartsLost
from tuner.executors.ray.artifacts import Artifact, ArtifactStore
from tuner.executors.ray.cluster import AgentSlot, Node, builder_places, device_places, live_nodes
from tuner.executors.ray.file_transfer import requests_in, texts_in
from tuner.executors.ray.slots import Slot, SlotTimeouts
from tuner.settings import Settings
from tuner.workers.utilisation import UtilisationMeter

_ATTEMPTS = 2

Result = TypeVar("Result")

_LOG = logging.getLogger(__name__)


class Fleet:
    """Keeps agents on all nodes of a cluster; used in one event loop.

    Args:
        settings: Name the engine, and bound the builders.
        patience: With agents.
        meter: Told when any builder works.

    Attributes:
        slots: By place; replaced, never changed, so that other threads may look.
    """

    def __init__(self, settings: Settings, patience: SlotTimeouts, meter: UtilisationMeter) -> None:
        self.slots: dict[AgentSlot, Slot] = {}
        self._settings = settings
        self._patience = patience
        self._meter = meter
        self._stock = ArtifactStore()
        # Builders with nothing to do, longest first; some of them may have been lost since.
        self._idle: asyncio.Queue[Slot] = asyncio.Queue()
        self._offered: set[Slot] = set()
        self._polls: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Start the agents; returns as soon as one device can measure.

        Raises:
            RequestError: If the cluster has no device that can, or no CPU to build on.
        """
        nodes = await asyncio.to_thread(live_nodes)
        _check(nodes)
        self._arrange(nodes)
        self._polls = asyncio.create_task(self._poll())
        devices = [slot for slot in self.slots.values() if slot.place.resource is not None]
        await _settled(devices, self._patience.start_secs, lambda: any(x.is_there for x in devices))
        if not any(slot.is_there for slot in devices):
            reasons = {slot.problem or "its agent does not start" for slot in devices}
            raise RequestError(f"no device of the Ray cluster can be used: {'; '.join(reasons)}")

    async def settle(self) -> None:
        """Wait until every agent of today is ready or known not to be, but not for ever."""
        slots = list(self.slots.values())
        await _settled(slots, self._patience.start_secs, lambda: False)

    def close(self) -> None:
        """Give every agent up."""
        if self._polls is not None:
            self._polls.cancel()
        for slot in self.slots.values():
            slot.close()

    async def call(self, module: str, function: str, args: Any, timeout_secs: float) -> Any:
        """Call a function in a builder."""
        return await self._in_builder(
            lambda slot: slot.ask(
                "call", (module, function), args, timeout_secs, timeout_secs=timeout_secs
            )
        )

    async def build(self, request: BuildRequest, timeout_secs: float) -> Any:
        """Build in a builder; the artifact stays on its node, under a name of ours."""
        result, artifact = await self._build(request, timeout_secs)
        if artifact is None:
            return result
        return replace(result, artifact=self._stock.add(artifact))

    async def measure(
        self, slot: Slot, function: str, args: tuple[Any, ...], timeout_secs: float
    ) -> Any:
        """Call a function on a device, with the files that its arguments name."""
        written = (args[-1],) if function == "reference" else ()
        limit = self._patience.fetch_secs
        for _ in range(_ATTEMPTS):
            parts = await self._find(args)
            parcels = Parcels(tuple(parts), tuple(parts.values()), limit, written)
            try:
                value, files = await slot.ask(
                    "measure", function, args, timeout_secs, parcels, timeout_secs=timeout_secs
                )
            except PartsLost:
                self._stock.lost.update(parts.keys() & self._stock.artifacts.keys())
                continue
            for name, content in zip(written, files, strict=True):
                await asyncio.to_thread(_write, Path(name), content)
            return value
        raise WorkerLost("what was to run was lost with its node", crashed=False)

    def discard(self, artifact: str) -> None:
        """Forget an artifact."""
        self._stock.discard(artifact)

    async def _find(self, args: tuple[Any, ...]) -> dict[str, Any]:
        """Return what is to be sent along with arguments, by the names they have for it."""
        parts = {}
        for name in texts_in(args):
            if name in self._stock.artifacts:
                parts[name] = (await self._artifact(name)).part
        for request in requests_in(args):
            if request.reference:
                parts[request.reference] = self._stock.reference(Path(request.reference))
        return parts

    async def _artifact(self, name: str) -> Artifact:
        """Return an artifact; one that went away with its node is built again elsewhere."""
        kept = self._stock.artifacts[name]
        if name not in self._stock.lost and not self._is_away(kept.node_id):
            return kept
        result, artifact = await self._build(kept.request, kept.timeout_secs)
        if artifact is None:
            raise WorkError(f"what was lost with its node does not build again: {result}")
        self._stock.replace(name, artifact)
        return artifact

    async def _build(
        self, request: BuildRequest, timeout_secs: float
    ) -> tuple[Any, Artifact | None]:
        async def build_on(slot: Slot) -> tuple[Any, Artifact | None]:
            (result, has_files), part = await slot.ask_for_part(
                "build", request, timeout_secs, timeout_secs=timeout_secs
            )
            artifact = Artifact(part, slot.place.node_id, request, timeout_secs)
            return result, artifact if has_files else None

        return await self._in_builder(build_on)

    async def _in_builder(self, work: Callable[[Slot], Awaitable[Result]]) -> Result:
        """Work with a builder; if its node cannot be reached, with one of another node."""
        for _ in range(_ATTEMPTS):
            slot = await self._take()
            try:
                return await self._with(slot, work)
            except WorkerLost as error:
                if not slot.is_away:
                    raise
                lost = error
        raise lost

    async def _with(self, slot: Slot, work: Callable[[Slot], Awaitable[Result]]) -> Result:
        self._meter.begin()
        try:
            return await work(slot)
        finally:
            self._meter.end()
            self._offer(slot)

    async def _take(self) -> Slot:
        while True:
            slot = await self._idle.get()
            self._offered.discard(slot)
            if slot.is_ready:
                return slot

    def _offer(self, slot: Slot) -> None:
        """Note that a builder has nothing to do; one that is lost comes back when it is ready."""
        if slot.is_ready and slot.place.resource is None and slot not in self._offered:
            self._offered.add(slot)
            self._idle.put_nowait(slot)

    def _changed(self, slot: Slot) -> None:
        """Give a builder work; or none to any agent of a node that cannot be reached."""
        self._offer(slot)
        if slot.is_away:
            for other in self._at(slot.place.node_id):
                if other.is_ready:
                    other.shun()

    def _is_away(self, node_id: str) -> bool:
        slots = self._at(node_id)
        return not slots or any(slot.is_away for slot in slots)

    def _at(self, node_id: str) -> list[Slot]:
        return [slot for slot in self.slots.values() if slot.place.node_id == node_id]

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._patience.poll_secs)
            try:
                nodes = await asyncio.to_thread(live_nodes)
            except Exception as error:
                _LOG.warning("the Ray cluster does not say who is there: %s", summary(error))
            else:
                self._arrange(nodes)

    def _arrange(self, nodes: Sequence[Node]) -> None:
        """Have an agent at every place where one is to be, and nowhere else."""
        devices = [place for node in nodes for place in device_places(node)]
        wanted = [*devices, *builder_places(nodes, self._settings.max_builders, self.slots)]
        for place in self.slots.keys() - set(wanted):
            self.slots[place].close()
        self.slots = {place: self.slots.get(place) or self._open(place) for place in wanted}

    def _open(self, place: AgentSlot) -> Slot:
        return Slot(place, self._settings.engine, self._patience, self._changed)


def _check(nodes: Sequence[Node]) -> None:
    """Refuse a cluster that could never finish a round.

    Raises:
        RequestError: If it has no device, or no CPU to build on.
    """
    if not any(node.devices for node in nodes):
        raise RequestError(
            f"none of the {len(nodes)} nodes of the Ray cluster has a device: start nodes with "
            'ray start --resources="$(tuner devices --ray)"'
        )
    if not builder_places(nodes, 1, ()):
        raise RequestError(
            f"none of the {len(nodes)} nodes of the Ray cluster has a CPU to build on: a node "
            "whose CPU is a device only measures; start a node without --resources too"
        )


async def _settled(slots: Sequence[Slot], limit: float, is_enough: Callable[[], bool]) -> None:
    """Wait until it is enough, or all agents are ready or known not to be, or for so long."""
    waiting = {asyncio.create_task(slot.settled.wait()) for slot in slots}
    deadline = asyncio.get_running_loop().time() + limit
    while waiting and not is_enough():
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            break
        _, waiting = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()


def _write(path: Path, content: bytes) -> None:
    """Write a file that is there as a whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(content)
    partial.rename(path)
