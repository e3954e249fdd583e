"""A Ray cluster: its nodes with CPUs and devices, and the slots of agents on them."""

import logging
import os
import socket
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tuner.devices.inventory import CPU_KIND, kind_of
from tuner.errors import RequestError, install_command

_CONNECT_TIMEOUT_SECS = 5.0
_JOIN_TIMEOUT_SECS = 60.0

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Node:
    """A node that is alive, with the number of its devices by resource."""

    id: str
    name: str
    n_cpus: int
    devices: Mapping[str, int]


@dataclass(frozen=True)
class AgentSlot:
    """The resources of one agent.

    Attributes:
        node_id: Ray's id of the node.
        node: Name of the node.
        resource: Kind of device that the agent measures on; None if it builds.
        number: Number of the slot among equal ones of its node.
        n_cpus: CPUs that only this agent uses.
    """

    node_id: str
    node: str
    resource: str | None
    number: int
    n_cpus: int


def connect(address: str) -> None:
    """Join a cluster as a driver; the logs of Ray stay in its own files.

    Raises:
        RequestError: If Ray is not installed, the cluster does not answer, or it has another
            version.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise RequestError(
            f"the Ray cluster {address} cannot be used, since Ray is not installed: "
            f"{install_command('ray')}"
        ) from error
    logging.getLogger("ray").setLevel(logging.ERROR)
    # Ray prints events of its nodes to stdout even with log_to_driver=False.
    ray._private.worker.print_to_stdstream = _log_event
    head = _head(address)
    _check_listening(head)
    _join(head)


def disconnect() -> None:
    """Leave the cluster, which ends the agents of this driver."""
    import ray

    ray.shutdown()


def live_nodes() -> list[Node]:
    """Return the nodes that are alive, as the head of the cluster knows them."""
    import ray

    return [_node(node) for node in ray.nodes() if node["Alive"]]


def device_slots(node: Node) -> list[AgentSlot]:
    """Return a slot for every device of a node.

    The agent of a CPU gets all CPUs of the node, so that no builder runs there. The agent of
    another device gets one CPU to start kernels from, if there is one.
    """
    measures_cpu = any(kind_of(resource) == CPU_KIND for resource in node.devices)
    slots: list[AgentSlot] = []
    for resource, count in sorted(node.devices.items()):
        for number in range(count):
            is_cpu = kind_of(resource) == CPU_KIND
            n_cpus = node.n_cpus if is_cpu else int(not measures_cpu and len(slots) < node.n_cpus)
            slots.append(AgentSlot(node.id, node.name, resource, number, n_cpus))
    return slots


def builder_slots(
    nodes: Collection[Node], max_builders: int | None, current: Collection[AgentSlot]
) -> list[AgentSlot]:
    """Return a slot for a builder on every CPU that no device needs.

    Args:
        nodes: The nodes that are alive.
        max_builders: Largest number of builders, spread over the nodes; None for no limit.
        current: Slots of running agents; running builders keep theirs.
    """
    slots = [
        AgentSlot(node.id, node.name, None, number, 1)
        for node in nodes
        for number in range(node.n_cpus - sum(slot.n_cpus for slot in device_slots(node)))
    ]
    slots.sort(key=lambda slot: (slot not in current, slot.number, slot.node_id))
    return slots[:max_builders]


def _head(address: str) -> str:
    """Return the address of the head; ``auto`` stands for the cluster of this machine."""
    import ray

    if address != "auto":
        return address
    try:
        head = ray._private.services.canonicalize_bootstrap_address("auto")
    except ConnectionError:
        head = None
    if head is None:
        raise RequestError("no node of a Ray cluster runs on this machine: see ray start --address")
    return str(head)


def _check_listening(address: str) -> None:
    """Check that the head answers: a driver without a head hangs, and cannot be interrupted."""
    import ray

    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        raise RequestError(f"a Ray address is HOST:PORT or auto, got {address!r}")
    try:
        socket.create_connection((host, int(port)), _CONNECT_TIMEOUT_SECS).close()
        ray._raylet.GcsClient(address=address)
    except (OSError, OverflowError, ray.exceptions.RayError) as error:
        raise RequestError(f"no Ray cluster answers at {address}: {error}") from error


def _join(address: str) -> None:
    import ray
    from ray.job_config import JobConfig

    outcome: list[BaseException | None] = []

    def join() -> None:
        try:
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
                # Otherwise agents import modules from the current folder of this process.
                job_config=JobConfig(_client_job=True),
            )
        except BaseException as error:
            outcome.append(error)
        else:
            outcome.append(None)

    # In a thread, where Ray does not replace signal handlers.
    thread = threading.Thread(target=join, name="tuner-ray-join", daemon=True)
    thread.start()
    thread.join(_JOIN_TIMEOUT_SECS)
    reason = outcome[0] if outcome else f"no answer within {_JOIN_TIMEOUT_SECS:.0f} s"
    if reason is not None:
        lines = [line.strip() for line in str(reason).splitlines() if line.strip()]
        raise RequestError(
            f"cannot join the Ray cluster at {address}: {' '.join(lines[:4])}; a coordinator runs "
            "on a node of its cluster, see ray start --address"
        )


def _node(raw: Mapping[str, Any]) -> Node:
    resources = raw["Resources"]
    name, host = raw["NodeName"], raw["NodeManagerHostname"]
    return Node(
        id=raw["NodeID"],
        name=host if name == raw["NodeManagerAddress"] else name,
        n_cpus=int(resources.get("CPU", 0)),
        devices={key: int(count) for key, count in resources.items() if kind_of(key)},
    )


def _log_event(data: Mapping[str, Any], *_args: object, **_options: object) -> None:
    text = " ".join(str(line) for line in data.get("lines", ()))
    _LOG.info("Ray: %s", text.partition("\n")[0])
