"""Slots of agents on the nodes of a cluster, and errors of clusters that do not answer."""

import socket
import sys
from pathlib import Path

import pytest

from tests.engines import toy
from tuner.errors import RequestError
from tuner.executors.ray.cluster import Node, builder_slots, device_slots
from tuner.executors.ray.executor import RayExecutor
from tuner.settings import Settings

CPU = "tuner:llvm:0123456789abcdef"
GPU = "tuner:cuda:0123456789abcdef"
OTHER_GPU = "tuner:cuda:fedcba9876543210"


def node(n_cpus: int, name: str = "n", **devices: int) -> Node:
    """Return a node with numbers of devices ``cpu``, ``gpu`` and ``other``."""
    resources = {"cpu": CPU, "gpu": GPU, "other": OTHER_GPU}
    return Node(name, name, n_cpus, {resources[kind]: n for kind, n in devices.items()})


@pytest.mark.parametrize(
    ("given", "agents", "builders"),
    [
        (node(4), {}, 4),
        (node(0), {}, 0),
        # No builder runs where a CPU is timed.
        (node(4, cpu=1), {CPU: [4]}, 0),
        (node(0, cpu=1), {CPU: [0]}, 0),
        (node(4, gpu=2), {GPU: [1, 1]}, 2),
        (node(4, gpu=1, other=2), {GPU: [1], OTHER_GPU: [1, 1]}, 1),
        # A device measures even where no CPU is left to it.
        (node(1, gpu=3), {GPU: [1, 0, 0]}, 0),
        (node(4, cpu=1, gpu=1), {CPU: [4], GPU: [0]}, 0),
    ],
)
def test_devices_have_their_cpus_and_builders_the_others(
    given: Node, agents: dict[str, list[int]], builders: int
) -> None:
    """Every device has an agent, and no CPU is used twice."""
    slots = device_slots(given)

    n_cpus = {
        resource: [slot.n_cpus for slot in slots if slot.resource == resource]
        for resource in given.devices
    }
    assert n_cpus == agents
    assert len(builder_slots([given], None, ())) == builders


def test_bounded_builders_are_spread_over_nodes() -> None:
    """No node has two builders while another has none."""
    nodes = [node(3, "a"), node(3, "b"), node(1, "c")]

    slots = builder_slots(nodes, 4, ())

    assert sorted(slot.node for slot in slots) == ["a", "a", "b", "c"]


def test_running_builders_keep_their_slots() -> None:
    """A new node takes no builder from another; a node that leaves gives its own to others."""
    current = builder_slots([node(4, "a")], 3, ())

    assert builder_slots([node(4, "a"), node(4, "b")], 3, current) == current
    assert {slot.node for slot in builder_slots([node(4, "b")], 3, current)} == {"b"}


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("somewhere", "HOST:PORT or auto, got 'somewhere'"),
        ("ray://127.0.0.1:10001", "HOST:PORT or auto, got 'ray:"),
        ("127.0.0.1:99999", "no Ray cluster answers"),
        (":6379", "HOST:PORT or auto"),
    ],
)
def test_an_invalid_address_is_refused(address: str, reason: str, tmp_path: Path) -> None:
    """The error names the address."""
    with pytest.raises(RequestError, match=reason):
        RayExecutor(Settings("", tmp_path, toy.NAME, 1, ray_address=address))


def test_an_address_without_a_cluster_is_refused_at_once(tmp_path: Path) -> None:
    """Ray itself would wait for minutes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"

    with pytest.raises(RequestError, match=f"no Ray cluster answers at {address}"):
        RayExecutor(Settings("", tmp_path, toy.NAME, 1, ray_address=address))


def test_missing_package_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the extra to install."""
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(RequestError, match=r"pip install -e '\.\[ray\]'"):
        RayExecutor(Settings("", tmp_path, toy.NAME, 1, ray_address="auto"))
