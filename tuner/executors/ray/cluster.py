"""A Ray cluster as the tuner sees it: nodes with CPUs and devices, and places for agents."""

import logging
import os
import socket
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tuner.devices.inventory import CPU_KIND, kind_of
from tuner.errors import RequestError

_CONNECT_SECS = 5.0
_JOIN_SECS = 60.0

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Node:
    """A node that is alive; ``devices`` counts its devices by resource."""

    id: str
    name: str
    n_cpus: int
    devices: Mapping[str, int]


@dataclass(frozen=True)
class AgentSlot:
    """Where one agent runs.

    Attributes:
        node_id: The node, as Ray numbers it.
        node: Its name.
        resource: The kind of device that the agent measures on; None: it builds.
        number: Tells alike places of a node apart.
        n_cpus: CPUs that nobody else gets.
    """

    node_id: str
    node: str
    resource: str | None
    number: int
    n_cpus: int


def connect(address: str) -> None:
    """Join a cluster as a driver; its logs stay in its own files.

    Raises:
        RequestError: If Ray is not installed, nobody answers, or it is of another version.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise RequestError(
            f"a Ray cluster is asked for ({address}), but Ray is not installed: "
            "pip install 'subgraph-tuner[ray]'"
        ) from error
    logging.getLogger("ray").setLevel(logging.ERROR)
    # Ray prints what happens to its nodes to stdout, whatever log_to_driver says.
    ray._private.worker.print_to_stdstream = _note
    head = _head(address)
    _check_listening(head)
    _join(head)


def disconnect() -> None:
    """Leave the cluster; it ends our agents."""
    import ray

    ray.shutdown()


def live_nodes() -> list[Node]:
    """Ask the head of the cluster which nodes are alive."""
    import ray

    return [_node(each) for each in ray.nodes() if each["Alive"]]


def device_places(node: Node) -> list[AgentSlot]:
    """Place an agent for every device of a node.

    One that times a CPU gets all CPUs of the node, so that nobody builds there; one that times
    another device gets one to start kernels from, if there is one.
    """
    measures_cpu = any(kind_of(resource) == CPU_KIND for resource in node.devices)
    places: list[AgentSlot] = []
    for resource, count in sorted(node.devices.items()):
        for number in range(count):
            is_cpu = kind_of(resource) == CPU_KIND
            n_cpus = node.n_cpus if is_cpu else int(not measures_cpu and len(places) < node.n_cpus)
            places.append(AgentSlot(node.id, node.name, resource, number, n_cpus))
    return places


def builder_places(
    nodes: Collection[Node], most: int | None, current: Collection[AgentSlot]
) -> list[AgentSlot]:
    """Place a builder on every CPU that no device needs.

    Args:
        nodes: The nodes that are alive.
        most: Builders at most; spread over nodes.
        current: Builders that run keep their places.
    """
    places = [
        AgentSlot(node.id, node.name, None, number, 1)
        for node in nodes
        for number in range(node.n_cpus - sum(each.n_cpus for each in device_places(node)))
    ]
    places.sort(key=lambda place: (place not in current, place.number, place.node_id))
    return places[:most]


def _head(address: str) -> str:
    """Return the address of the head, which for ``auto`` is that of this machine's cluster."""
    import ray

    if address != "auto":
        return address
    try:
        found = ray._private.services.canonicalize_bootstrap_address("auto")
    except ConnectionError:
        found = None
    if found is None:
        raise RequestError("no node of a Ray cluster runs on this machine: see ray start --address")
    return str(found)


def _check_listening(address: str) -> None:
    """Ask the head for something: a driver that finds none hangs, and cannot be stopped."""
    import ray

    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        raise RequestError(f"a Ray address is HOST:PORT or auto, got {address!r}")
    try:
        socket.create_connection((host, int(port)), _CONNECT_SECS).close()
        ray._raylet.GcsClient(address=address)
    except (OSError, OverflowError, ray.exceptions.RayError) as error:
        raise RequestError(f"no Ray cluster answers at {address}: {error}") from error


def _join(address: str) -> None:
    import ray

    outcome: list[BaseException | None] = []

    def join() -> None:
        try:
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
            )
        except BaseException as error:
            outcome.append(error)
        else:
            outcome.append(None)

    # In a thread, where Ray leaves the handlers of signals alone.
    thread = threading.Thread(target=join, name="tuner-ray-join", daemon=True)
    thread.start()
    thread.join(_JOIN_SECS)
    reason = outcome[0] if outcome else f"it does not answer within {_JOIN_SECS:.0f} s"
    if reason is not None:
        lines = [line.strip() for line in str(reason).splitlines() if line.strip()]
        raise RequestError(
            f"cannot join the Ray cluster at {address}: {' '.join(lines[:4])}; a coordinator runs "
            "on a node of its cluster, see ray start --address"
        )


def _node(described: Mapping[str, Any]) -> Node:
    resources = described["Resources"]
    name, host = described["NodeName"], described["NodeManagerHostname"]
    return Node(
        id=described["NodeID"],
        name=host if name == described["NodeManagerAddress"] else name,
        n_cpus=int(resources.get("CPU", 0)),
        devices={key: int(count) for key, count in resources.items() if kind_of(key)},
    )


def _note(data: Mapping[str, Any], *_args: object, **_options: object) -> None:
    text = " ".join(str(line) for line in data.get("lines", ()))
    _LOG.info("Ray: %s", text.partition("\n")[0])
