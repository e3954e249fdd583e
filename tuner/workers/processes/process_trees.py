"""Stopping of processes with all that they started, and their continuation."""

from contextlib import suppress
from typing import TYPE_CHECKING

# Pools of environments without psutil are never paused.
if TYPE_CHECKING:
    from collections.abc import Iterable

    import psutil


def stop(process_id: int) -> "list[psutil.Process]":
    """Stop a process and its descendants, and return the stopped processes."""
    import psutil

    with suppress(psutil.Error):
        return _stop_tree(psutil.Process(process_id))
    return []


def resume(processes: "Iterable[psutil.Process]") -> None:
    """Let stopped processes continue; some of them may have ended."""
    import psutil

    for process in processes:
        with suppress(psutil.Error):
            process.resume()


def _stop_tree(process: "psutil.Process") -> "list[psutil.Process]":
    """Stop a process before its children: once it is stopped, it starts no more of them."""
    import psutil

    process.suspend()
    stopped = [process]
    for child in process.children():
        with suppress(psutil.Error):
            stopped += _stop_tree(child)
    return stopped
