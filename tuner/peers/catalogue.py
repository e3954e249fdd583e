"""The peers that a library can be compared with, and which are installed."""

import importlib.metadata
import importlib.util
from dataclasses import dataclass

from tuner.errors import install_command


@dataclass(frozen=True)
class PeerPackage:
    """A runtime that runs models itself.

    Attributes:
        name: Name of the peer, of its module here, and of the package that it imports.
        formats: Formats of models that it runs.
        extra: Extra that installs it.
        distributions: Distributions that bring the package; the first is that of the extra.
        profiles: True if it is a :class:`tuner.peers.base.ProfilingPeer`.
    """

    name: str
    formats: frozenset[str]
    extra: str
    distributions: tuple[str, ...]
    profiles: bool = True

    @property
    def module(self) -> str:
        """Module with the functions of :class:`tuner.peers.base.Peer`."""
        return f"tuner.peers.{self.name}"

    @property
    def fix(self) -> str:
        """Command that installs it."""
        return install_command(self.extra)

    def is_installed(self) -> bool:
        """Return whether its package can be imported."""
        return importlib.util.find_spec(self.name) is not None

    def description(self) -> str:
        """Return its name, version and devices; empty if it is not installed."""
        for name in self.distributions:
            try:
                version = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
            has_cuda = name == "onnxruntime-gpu" or (name == "torch" and "+cpu" not in version)
            return f"{self.name} {version} (CPU{', GPU' if has_cuda else ''})"
        return ""


#: In the order of a comparison; the first of a format is its default.
PEERS = (
    PeerPackage(
        "onnxruntime", frozenset({"onnx"}), "onnxruntime", ("onnxruntime", "onnxruntime-gpu")
    ),
    PeerPackage("openvino", frozenset({"onnx"}), "openvino", ("openvino",)),
    PeerPackage("torch", frozenset({"pt2"}), "torch", ("torch",), profiles=False),
)
