"""Distribution of the tests over the processes of ``make test``."""

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests import durability, new_databases
from tests.cli import ROOT, WORKER_VARIABLES

pytest_plugins = ("tests.database_fixtures",)

# Folders whose files wait for processes, leases and pages start first, so that no process of
# pytest-xdist is left with a long one at the end.
_LONGEST_FIRST = (
    *("faults", "tuner/engines", "service", "tuner/executors", "browser", "tuner/jit"),
    *("deploy", "tuner/client"),
)
# Fixtures that are shared by all files below take tens of seconds to make.
_KEPT_TOGETHER = ("tuner/engines/relay", "deploy", "tuner/client", "browser")
# A process starts one Ray cluster for all tests that need it.
_RAY_FILES = (
    "faults/test_ray.py",
    "faults/test_slow_device.py",
    "tuner/executors/ray/test_executor.py",
)
_RAY_PARAMETERS = {"ray", "cluster"}

# Workers find the helpers of tests, and get the variables by which tests control them.
os.environ["PYTHONPATH"] = str(ROOT)
os.environ["TUNER_WORKER_ENVIRONMENT"] = WORKER_VARIABLES

# Drawn tests hold on a busy machine, where one example may take seconds. Every run draws others.
settings.register_profile(
    "busy", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy")
durability.do_not_wait()
new_databases.create_tables_at_once()


class _GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """Distribution in which the tests of a group run in one process."""

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)


# Marks of groups would not do: pytest-xdist 3.8 adds them to names that pytest 9.2 does not read.
@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Keep the tests of a file, and those of Ray, together."""
    return _GroupScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Check the reasons of slow tests, and start with what takes longest."""
    for item in items:
        mark = item.get_closest_marker("slow")
        if mark is not None and not mark.args:
            raise pytest.UsageError(f"{item.nodeid}: the mark slow takes its reason")
    # Sorting is stable: every process collects the same order, as pytest-xdist demands.
    items.sort(key=lambda item: _rank(_group(item.nodeid)))


def _group(nodeid: str) -> str:
    """Name the group of a test."""
    path, _, name = nodeid.partition("::")
    path = path.removeprefix("tests/")
    parameters = set(name.partition("[")[2].rstrip("]").split("-"))
    if path in _RAY_FILES or _RAY_PARAMETERS & parameters:
        return "ray"
    return next((folder for folder in _KEPT_TOGETHER if path.startswith(folder)), path)


def _rank(group: str) -> int:
    if group == "ray":
        return -1
    folders = enumerate(_LONGEST_FIRST)
    return next((i for i, folder in folders if group.startswith(folder)), len(_LONGEST_FIRST))
