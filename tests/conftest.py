"""Distribution of the tests over the processes of ``make test``."""

from pathlib import Path

import pytest

_TESTS = Path(__file__).parent
# Folders whose files wait for processes, leases and pages start first, so that no process of
# pytest-xdist is left with a long one at the end.
_LONGEST_FIRST = ("faults", "tuner/engines", "service", "tuner/executors", "browser", "tuner/jit")
# Fixtures that are shared by all files below take tens of seconds to make.
_KEPT_TOGETHER = ("tuner/engines/relay",)


# Groups have to be known before pytest-xdist reads them in the same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check the reasons of slow tests; keep the tests of a file, and those of Ray, together."""
    for item in items:
        mark = item.get_closest_marker("slow")
        if mark is not None and not mark.args:
            raise pytest.UsageError(f"{item.nodeid}: the mark slow takes its reason")
    if not config.pluginmanager.hasplugin("dsession") and not hasattr(config, "workerinput"):
        return
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    # Sorting is stable: every process collects the same order, as pytest-xdist demands.
    items.sort(key=_rank)


def _group(item: pytest.Item) -> str:
    """Name the group of a test; a group runs in one process."""
    if _uses_ray(item):
        return "ray"
    path = item.path.relative_to(_TESTS).as_posix()
    return next((folder for folder in _KEPT_TOGETHER if path.startswith(folder)), path)


def _uses_ray(item: pytest.Item) -> bool:
    """Return whether a test needs the Ray cluster that a process starts once."""
    callspec = getattr(item, "callspec", None)
    parameters = {} if callspec is None else callspec.params
    return "rack" in getattr(item, "fixturenames", ()) or bool(
        {"ray", "cluster"} & {value for value in parameters.values() if isinstance(value, str)}
    )


def _rank(item: pytest.Item) -> int:
    if _uses_ray(item):
        return -1
    path = item.path.relative_to(_TESTS).as_posix()
    folders = enumerate(_LONGEST_FIRST)
    return next((i for i, folder in folders if path.startswith(folder)), len(_LONGEST_FIRST))
