"""The artifacts that nodes of a cluster store for their coordinator, and its reference files."""

import uuid
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from tuner.engines.base import BuildRequest

_MAX_REFERENCES = 64


@dataclass(frozen=True)
class Artifact:
    """Files that lie on a node, and how to build them again if the node is lost.

    Attributes:
        object_ref: Reference to the files in the store of Ray.
        node_id: Node that built them.
        request: Request that built them.
        timeout_secs: Time-out of the build.
    """

    object_ref: Any
    node_id: str
    request: BuildRequest
    timeout_secs: float


class ArtifactStore:
    """The artifacts and reference files that the arguments of calls name.

    Attributes:
        artifacts: Artifacts by name.
        lost: Names of artifacts whose files are lost.
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
        """Give a name to another artifact, unless the name was discarded."""
        if name in self.artifacts:
            self.artifacts[name] = artifact
            self.lost.discard(name)

    def reference(self, path: Path) -> Any:
        """Return a Ray reference to the content of a file, stored once while it is in use.

        Raises:
            OSError: If the file cannot be read.
        """
        stat = path.stat()
        key = (str(path), stat.st_size, stat.st_mtime_ns)
        if key not in self._references:
            self._references[key] = ray.put(path.read_bytes())
        self._references.move_to_end(key)
        if len(self._references) > _MAX_REFERENCES:
            self._references.popitem(last=False)
        return self._references[key]
