"""Which agents a Ray cluster is to run, and what is said where there is no such cluster."""

import socket
import sys
from pathlib import Path

import pytest

from tests.engines import toy
from tuner.errors import RequestError
from tuner.executors.ray.cluster import Node, builder_places, device_places
from tuner.executors.ray.executor import RayExecutor
from tuner.settings import Settings

CPU = "tuner:llvm:0123456789abcdef"
GPU = "tuner:cuda:0123456789abcdef"
OTHER_GPU = "tuner:cuda:fedcba9876543210"


def node(n_cpus: int, name: str = "n", **devices: int) -> Node:
    """A node with devices; ``cpu``, ``gpu`` and ``other`` count them."""
    resources = {"cpu": CPU, "gpu": GPU, "other": OTHER_GPU}
    return Node(name, name, n_cpus, {resources[kind]: n for kind, n in devices.items()})


@pytest.mark.parametrize(
    ("given", "agents", "builders"),
    [
        (node(4), {}, 4),
        (node(0), {}, 0),
        # Nobody builds where a CPU is timed.
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
    """Every device has an agent; no CPU is given away twice."""
    places = device_places(given)

    found = {
        resource: [place.n_cpus for place in places if place.resource == resource]
        for resource in given.devices
    }
    assert found == agents
    assert len(builder_places([given], None, ())) == builders


def test_bounded_builders_are_spread_over_nodes() -> None:
    """None has two while another has none."""
    nodes = [node(3, "a"), node(3, "b"), node(1, "c")]

    places = builder_places(nodes, 4, ())

    assert sorted(place.node for place in places) == ["a", "a", "b", "c"]


def test_builders_that_run_keep_their_places() -> None:
    """A node that comes later takes no bounded builder from another; one that leaves gives."""
    current = builder_places([node(4, "a")], 3, ())

    assert builder_places([node(4, "a"), node(4, "b")], 3, current) == current
    assert {place.node for place in builder_places([node(4, "b")], 3, current)} == {"b"}


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("somewhere", "HOST:PORT or auto, got 'somewhere'"),
        ("ray://127.0.0.1:10001", "HOST:PORT or auto, got 'ray:"),
        ("127.0.0.1:99999", "no Ray cluster answers"),
        (":6379", "HOST:PORT or auto"),
    ],
)
def test_an_address_that_is_none_is_refused(address: str, reason: str, tmp_path: Path) -> None:
    """At once, with the address."""
    with pytest.raises(RequestError, match=reason):
        RayExecutor(Settings("", tmp_path, toy.NAME, 1, ray_address=address))


def test_nobody_at_an_address_is_found_out_at_once(tmp_path: Path) -> None:
    """Ray itself would wait for minutes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"

    with pytest.raises(RequestError, match=f"no Ray cluster answers at {address}"):
        RayExecutor(Settings("", tmp_path, toy.NAME, 1, ray_address=address))


def test_missing_package_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who installed no extra learns which one."""
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(RequestError, match=r"subgraph-tuner\[ray\]"):
        RayExecutor(Settings("", tmp_path, toy.NAME, 1, ray_address="auto"))
