"""A real tracker with two real servers on loopback, shared by the tests of a module."""

from collections.abc import Iterator

import pytest

from tests.rpc_servers import RpcServers


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RpcServers]:
    """Yield a tracker with two servers."""
    with RpcServers(tmp_path_factory.mktemp("servers")) as started:
        started.start_server("first")
        started.start_server("second")
        started.wait_for(2)
        yield started


@pytest.fixture(scope="module")
def tracker_alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RpcServers]:
    """Yield a tracker without servers."""
    with RpcServers(tmp_path_factory.mktemp("tracker"), key="none") as started:
        yield started
