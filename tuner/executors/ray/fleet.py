"""The agents of a Ray cluster: one for each device and builder, and the calls that they serve."""

import asyncio
import logging
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import ray

from tuner.engines.base import BuildRequest
from tuner.errors import RequestError, WorkerLost, WorkError, summary
from tuner.executors.file_transfer import requests_in, texts_in
from tuner.executors.ray.agent import AttachmentLost, Attachments
from tuner.executors.ray.cluster import AgentSlot, Node, builder_slots, device_slots, live_nodes
from tuner.executors.ray.supervisor import AgentSupervisor, AgentTimeouts
from tuner.settings import Settings
from tuner.workers.utilisation import UtilisationMeter

_MAX_ATTEMPTS = 2

Result = TypeVar("Result")

_LOG = logging.getLogger(__name__)

_MAX_REFERENCES = 64


@dataclass(frozen=True)
class Artifact:
    """Files that lie on a node, and how to build them again if the node is lost.

    Attributes:
        object_ref: Reference to the files in the store of Ray.
        node_id: Node that built them.
        request: Request that built them.
        timeout_secs: Time-out of the build.
    """

    object_ref: Any
    node_id: str
    request: BuildRequest
    timeout_secs: float


class ArtifactStore:
    """The artifacts and reference files that the arguments of calls name.

    Attributes:
        artifacts: Artifacts by name.
        lost: Names of artifacts whose files are lost.
    """

    def __init__(self) -> None:
        self.artifacts: dict[str, Artifact] = {}
        self.lost: set[str] = set()
        self._references: OrderedDict[tuple[str, int, int], Any] = OrderedDict()

    def add(self, artifact: Artifact) -> str:
        """Keep an artifact, and return its name."""
        name = f"artifact-{uuid.uuid4().hex}"
        self.artifacts[name] = artifact
        return name

    def discard(self, name: str) -> None:
        """Forget an artifact; the cluster removes its files."""
        self.artifacts.pop(name, None)
        self.lost.discard(name)

    def replace(self, name: str, artifact: Artifact) -> None:
        """Give a name to another artifact, unless the name was discarded."""
        if name in self.artifacts:
            self.artifacts[name] = artifact
            self.lost.discard(name)

    def reference(self, path: Path) -> Any:
        """Return a Ray reference to the content of a file, stored once while it is in use.

        Raises:
            OSError: If the file cannot be read.
        """
        stat = path.stat()
        key = (str(path), stat.st_size, stat.st_mtime_ns)
        if key not in self._references:
            self._references[key] = ray.put(path.read_bytes())
        self._references.move_to_end(key)
        if len(self._references) > _MAX_REFERENCES:
            self._references.popitem(last=False)
        return self._references[key]


class AgentFleet:
    """Keeps agents on all nodes of a cluster; used in one event loop.

    Args:
        settings: Engine, and the largest number of builders.
        timeouts: Time-outs of agents.
        meter: Meter of the builders' work.

    Attributes:
        agents: Supervisors by slot; replaced, never changed, so that other threads may read it.
    """

    def __init__(
        self, settings: Settings, timeouts: AgentTimeouts, meter: UtilisationMeter
    ) -> None:
        self.agents: dict[AgentSlot, AgentSupervisor] = {}
        self._settings = settings
        self._timeouts = timeouts
        self._meter = meter
        self._artifacts = ArtifactStore()
        # Idle builders, longest idle first; some of them may have been lost since.
        self._idle: asyncio.Queue[AgentSupervisor] = asyncio.Queue()
        self._queued: set[AgentSupervisor] = set()
        self._polls: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Start the agents, and return as soon as one device can measure.

        Raises:
            RequestError: If no device of the cluster can be used, or it has no CPU to build on.
        """
        nodes = await asyncio.to_thread(live_nodes)
        _check(nodes)
        self._reconcile(nodes)
        self._polls = asyncio.create_task(self._poll())
        devices = [agent for agent in self.agents.values() if agent.slot.resource is not None]

        def can_measure() -> bool:
            return any(device.is_available for device in devices)

        await _settled(devices, self._timeouts.start_secs, can_measure)
        if not can_measure():
            reasons = {device.problem or "its agent does not start" for device in devices}
            raise RequestError(f"no device of the Ray cluster can be used: {'; '.join(reasons)}")

    async def settle(self) -> None:
        """Wait until every present agent is ready or has failed to start, or for start_secs."""
        await _settled(list(self.agents.values()), self._timeouts.start_secs, lambda: False)

    def close(self) -> None:
        """End every agent."""
        if self._polls is not None:
            self._polls.cancel()
        for agent in self.agents.values():
            agent.close()

    async def call(self, module: str, function: str, args: Any, timeout_secs: float) -> Any:
        """Call a function in a builder."""
        return await self._in_builder(
            lambda builder: builder.call(
                "call", (module, function), args, timeout_secs, timeout_secs=timeout_secs
            )
        )

    async def build(self, request: BuildRequest, timeout_secs: float) -> Any:
        """Build in a builder; the artifact stays on its node, and the result names it."""
        result, artifact = await self._build(request, timeout_secs)
        if artifact is None:
            return result
        return replace(result, artifact=self._artifacts.add(artifact))

    async def measure(
        self, device: AgentSupervisor, function: str, args: tuple[Any, ...], timeout_secs: float
    ) -> Any:
        """Call a function on a device, with the files that its arguments name."""
        limit = self._timeouts.fetch_secs
        for _ in range(_MAX_ATTEMPTS):
            refs = {}
            for name in texts_in(args):
                if name in self._artifacts.artifacts:
                    refs[name] = (await self._artifact(name)).object_ref
            for request in requests_in(args):
                for name in request.references:
                    refs[name] = self._artifacts.reference(Path(name))
            attachments = Attachments(tuple(refs), tuple(refs.values()), limit)
            try:
                return await device.call(
                    "measure", function, args, timeout_secs, attachments, timeout_secs=timeout_secs
                )
            except AttachmentLost:
                self._artifacts.lost.update(refs.keys() & self._artifacts.artifacts.keys())
        raise WorkerLost("the artifact was lost with its node", crashed=False)

    def discard(self, artifact: str) -> None:
        """Forget an artifact."""
        self._artifacts.discard(artifact)

    async def _artifact(self, name: str) -> Artifact:
        """Return an artifact; one that was lost with its node is built again on another."""
        artifact = self._artifacts.artifacts[name]
        if name not in self._artifacts.lost and not self._is_unreachable(artifact.node_id):
            return artifact
        result, rebuilt = await self._build(artifact.request, artifact.timeout_secs)
        if rebuilt is None:
            raise WorkError(f"an artifact lost with its node does not build again: {result}")
        self._artifacts.replace(name, rebuilt)
        return rebuilt

    async def _build(
        self, request: BuildRequest, timeout_secs: float
    ) -> tuple[Any, Artifact | None]:
        async def build_on(builder: AgentSupervisor) -> tuple[Any, Artifact | None]:
            (result, has_artifact), files = await builder.call_for_files(
                "build", request, timeout_secs, timeout_secs=timeout_secs
            )
            artifact = Artifact(files, builder.slot.node_id, request, timeout_secs)
            return result, artifact if has_artifact else None

        return await self._in_builder(build_on)

    async def _in_builder(self, work: Callable[[AgentSupervisor], Awaitable[Result]]) -> Result:
        """Work with a builder; if its node cannot be reached, with one of another node."""
        for _ in range(_MAX_ATTEMPTS):
            builder = await self._next_idle()
            try:
                self._meter.begin()
                try:
                    return await work(builder)
                finally:
                    self._meter.end()
                    self._queue_if_idle(builder)
            except WorkerLost as error:
                if not builder.is_unreachable:
                    raise
                lost = error
        raise lost

    async def _next_idle(self) -> AgentSupervisor:
        while True:
            builder = await self._idle.get()
            self._queued.discard(builder)
            if builder.is_ready:
                return builder

    def _queue_if_idle(self, agent: AgentSupervisor) -> None:
        """Queue a builder for work; one that is lost is queued again when it is ready."""
        if agent.is_ready and agent.slot.resource is None and agent not in self._queued:
            self._queued.add(agent)
            self._idle.put_nowait(agent)

    def _on_change(self, agent: AgentSupervisor) -> None:
        """Queue a ready builder; give up all agents of a node that cannot be reached."""
        self._queue_if_idle(agent)
        if agent.is_unreachable:
            for other in self._agents_on(agent.slot.node_id):
                if other.is_ready:
                    other.give_up()

    def _is_unreachable(self, node_id: str) -> bool:
        agents = self._agents_on(node_id)
        return not agents or any(agent.is_unreachable for agent in agents)

    def _agents_on(self, node_id: str) -> list[AgentSupervisor]:
        return [agent for agent in self.agents.values() if agent.slot.node_id == node_id]

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._timeouts.poll_secs)
            try:
                nodes = await asyncio.to_thread(live_nodes)
            except Exception as error:
                _LOG.warning("the Ray cluster does not list its nodes: %s", summary(error))
            else:
                self._reconcile(nodes)

    def _reconcile(self, nodes: Sequence[Node]) -> None:
        """Start an agent in each slot of the nodes, and end all others."""
        devices = [slot for node in nodes for slot in device_slots(node)]
        slots = [*devices, *builder_slots(nodes, self._settings.max_builders, self.agents)]
        for slot in self.agents.keys() - set(slots):
            self.agents[slot].close()
        self.agents = {
            slot: self.agents.get(slot)
            or AgentSupervisor(slot, self._settings.engine, self._timeouts, self._on_change)
            for slot in slots
        }


def _check(nodes: Sequence[Node]) -> None:
    """Refuse a cluster that cannot finish a round.

    Raises:
        RequestError: If it has no device, or no CPU to build on.
    """
    if not any(node.devices for node in nodes):
        raise RequestError(
            f"none of the {len(nodes)} nodes of the Ray cluster has a device: start nodes with "
            'ray start --resources="$(tuner devices --ray)"'
        )
    if not builder_slots(nodes, 1, ()):
        raise RequestError(
            f"none of the {len(nodes)} nodes of the Ray cluster has a CPU to build on: a node "
            "whose CPU is a device only measures; start a node without --resources too"
        )


async def _settled(
    agents: Sequence[AgentSupervisor], limit: float, is_enough: Callable[[], bool]
) -> None:
    """Wait until a condition holds, all agents are ready or have failed, or the limit passes."""
    waiting = {asyncio.create_task(agent.settled.wait()) for agent in agents}
    deadline = asyncio.get_running_loop().time() + limit
    while waiting and not is_enough():
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            break
        _, waiting = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
