"""The peers that a library can be compared with, and which are installed."""

import importlib.metadata
import importlib.util
from dataclasses import dataclass

from tuner.errors import install_command


@dataclass(frozen=True)
class PeerPackage:
    """A runtime that runs models itself.

    Attributes:
        name: Name of the peer, and of its module here.
        formats: Formats of models that it runs.
        extra: Extra that installs it.
        distributions: Distributions that bring the package; the first is that of the extra.
        profiles: True if it is a :class:`tuner.peers.base.ProfilingPeer`.
        package: Package that it imports; empty for that of its name.
    """

    name: str
    formats: frozenset[str]
    extra: str
    distributions: tuple[str, ...]
    profiles: bool = True
    package: str = ""

    @property
    def module(self) -> str:
        """Module with the functions of :class:`tuner.peers.base.Peer`."""
        return f"tuner.peers.{self.name.replace('-', '_')}"

    @property
    def fix(self) -> str:
        """Command that installs it."""
        return install_command(self.extra)

    def is_installed(self) -> bool:
        """Return whether its package can be imported."""
        return importlib.util.find_spec(self.package or self.name) is not None

    def description(self) -> str:
        """Return its package, version and devices; empty if it is not installed."""
        for name in self.distributions:
            try:
                version = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
            has_cuda = name == "onnxruntime-gpu" or (name == "torch" and "+cpu" not in version)
            return f"{self.package or self.name} {version} (CPU{', GPU' if has_cuda else ''})"
        return ""


#: In the order of a comparison; the first of a format is its default.
PEERS = (
    PeerPackage(
        "onnxruntime", frozenset({"onnx"}), "onnxruntime", ("onnxruntime", "onnxruntime-gpu")
    ),
    PeerPackage("openvino", frozenset({"onnx"}), "openvino", ("openvino",)),
    *(
        PeerPackage(name, frozenset({"pt2"}), "torch", ("torch",), profiles=False, package="torch")
        for name in ("torch", "torch-cuda-graph", "torch-compile")
    ),
)
