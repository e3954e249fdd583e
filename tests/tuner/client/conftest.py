"""A service of the toy engine, and clients of it."""

from collections.abc import Iterator

import pytest

from tests.services import Service, running
from tuner.client import TunerClient
from tuner.schemas import JobSummary


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service whose candidates are slow enough to be watched."""
    with running(tmp_path_factory.mktemp("service"), TOY_RUN_SECS="0.02") as service:
        yield service


@pytest.fixture
def client(service: Service) -> Iterator[TunerClient]:
    """A client without a token."""
    with TunerClient(service.url) as client:
        yield client


@pytest.fixture(scope="session")
def done(service: Service) -> JobSummary:
    """A finished job of 40 trials."""
    with TunerClient(service.url) as client:
        return client.wait(client.tune("zoo:mlp", trials=40).job.id)
