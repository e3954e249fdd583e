"""The compile cache: whole libraries by the hash of everything their bytes depend on."""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tuner.errors import RequestError
from tuner.library import manifest
from tuner.library.folders import copy_into, replace_folder

__all__ = ["Store", "copy_into", "key_of", "replace_folder"]


def key_of(parts: Mapping[str, Any]) -> str:
    """Hash what a library depends on: network, target, device, traces, versions."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class Store:
    """A directory of libraries, one a key; a half-written one never exists under its key."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, key: str) -> Path | None:
        """Return the folder of a whole library; a damaged one is dropped."""
        folder = self.root / key
        if not folder.is_dir():
            return None
        try:
            manifest.verify(folder, manifest.read(folder))
        except RequestError:
            shutil.rmtree(folder, ignore_errors=True)
            return None
        return folder

    def add(self, key: str, write: Callable[[Path], None]) -> Path:
        """Let ``write`` fill a new folder and keep it under its key.

        Raises:
            WorkError: If it cannot be written; nothing is left behind.
        """
        return replace_folder(self.root / key, write)
