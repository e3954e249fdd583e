"""Distribution of the tests over the processes of ``make test``."""

import gc
import itertools
import os
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests import durability, forked_pytest, new_databases, templates
from tests.cli import ROOT, WORKER_VARIABLES

pytest_plugins = ("tests.database_fixtures",)

# Groups that wait for processes, leases and pages, and groups that compute, each list with those
# first that take longest.
_WAITING = (
    *("faults", "service", "tuner/tuning/test_interrupted_command"),
    *("tuner/workers/processes", "browser", "tuner/client", "tuner/executors"),
)
_COMPUTING = ("deploy", "examples", "benchmarks", "tuner/packs", "tuner/engines", "tuner/jit")
# Fixtures that are shared by all files below take tens of seconds to make, and exporters of torch
# seconds to import.
_KEPT_TOGETHER = (
    *("tuner/engines/relay", "tuner/engines/relax/frontend", "tuner/jit", "deploy", "tuner/client"),
    "browser",
)

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
new_databases.share_statements()
templates.share_templates()
# Collection makes millions of objects that live as long as the process.
gc.disable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    """Fork the processes from one that has collected the tests."""
    server = forked_pytest.ForkServer(config.args)
    config.add_cleanup(server.close)
    for spec in specs:
        spec.python = server.command


class _GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """Distribution in which the tests of a group run in one process."""

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)


# Marks of groups would not do: pytest-xdist 3.8 adds them to names that pytest 9.2 does not read.
@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Keep the tests of a file together."""
    return _GroupScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Check the reasons of slow tests, and order the groups.

    Groups that wait and groups that compute alternate, which leaves no core idle. What takes
    longest comes first, so that no process of pytest-xdist is left with it at the end.
    """
    for item in items:
        mark = item.get_closest_marker("slow")
        if mark is not None and not mark.args:
            raise pytest.UsageError(f"{item.nodeid}: the mark slow takes its reason")
    groups = dict.fromkeys(_group(item.nodeid) for item in items)
    waiting = [group for group in groups if group.startswith(_WAITING)]
    computing = [group for group in groups if not group.startswith(_WAITING)]
    waiting.sort(key=lambda group: _rank(group, _WAITING))
    computing.sort(key=lambda group: _rank(group, _COMPUTING))
    alternating = itertools.chain.from_iterable(itertools.zip_longest(waiting, computing))
    places = {group: place for place, group in enumerate(alternating)}
    # Sorting is stable: every process collects the same order, as pytest-xdist demands.
    items.sort(key=lambda item: places[_group(item.nodeid)])


def pytest_collection_finish() -> None:
    """Look for garbage again, but not among what was collected."""
    gc.freeze()
    gc.enable()


def _group(nodeid: str) -> str:
    """Name the group of a test."""
    path = nodeid.partition("::")[0].removeprefix("tests/")
    return next((folder for folder in _KEPT_TOGETHER if path.startswith(folder)), path)


def _rank(group: str, folders: Sequence[str]) -> int:
    return next((i for i, folder in enumerate(folders) if group.startswith(folder)), len(folders))
