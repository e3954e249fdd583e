"""What a cluster stores for its coordinator: artifacts where they were built, and references."""

import uuid
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from tuner.engines.base import BuildRequest

_MOST_REFERENCES = 64


@dataclass(frozen=True)
class Artifact:
    """Files that lie on a node, and how to build them again once the node is gone.

    Attributes:
        part: Refers to them.
        node_id: The node.
        request: Built them.
        timeout_secs: Of the build.
    """

    part: Any
    node_id: str
    request: BuildRequest
    timeout_secs: float


class ArtifactStore:
    """Finds what the arguments of a call name.

    Attributes:
        artifacts: By name.
        lost: Names of artifacts that turned out to be gone.
    """

    def __init__(self) -> None:
        self.artifacts: dict[str, Artifact] = {}
        self.lost: set[str] = set()
        self._references: OrderedDict[tuple[str, int, int], Any] = OrderedDict()

    def add(self, artifact: Artifact) -> str:
        """Keep an artifact, and return its name."""
        name = f"artifact-{uuid.uuid4().hex}"
        self.artifacts[name] = artifact
        return name

    def discard(self, name: str) -> None:
        """Forget an artifact; the cluster removes its files."""
        self.artifacts.pop(name, None)
        self.lost.discard(name)

    def replace(self, name: str, artifact: Artifact) -> None:
        """Have another artifact under a name, unless it was discarded meanwhile."""
        if name in self.artifacts:
            self.artifacts[name] = artifact
            self.lost.discard(name)

    def reference(self, path: Path) -> Any:
        """Refer to the contents of a file of the coordinator, stored once while it is in use.

        Raises:
            OSError: If it cannot be read.
        """
        stat = path.stat()
        key = (str(path), stat.st_size, stat.st_mtime_ns)
        if key not in self._references:
            self._references[key] = ray.put(path.read_bytes())
        self._references.move_to_end(key)
        if len(self._references) > _MOST_REFERENCES:
            self._references.popitem(last=False)
        return self._references[key]
