"""The peers that a library can be compared with, and which are installed."""

import importlib.metadata
import importlib.util
from dataclasses import dataclass, replace

from tuner.errors import install_command


@dataclass(frozen=True)
class PeerPackage:
    """A runtime that runs models itself.

    Attributes:
        name: Name of the peer, and of its module here.
        extra: Extra that installs it; empty if its packages are installed by name.
        distributions: Distributions that bring the package; the first is that of the extra. Empty
            if another peer has them.
        profiles: True if it is a :class:`tuner.peers.base.ProfilingPeer`.
        packages: Packages that it imports; empty for that of its name.
        needs_gpu: True if it runs libraries of GPUs only.
    """

    name: str
    formats: frozenset[str]
    extra: str
    distributions: tuple[str, ...]
    profiles: bool = True
    packages: tuple[str, ...] = ()
    needs_gpu: bool = False

    @property
    def module(self) -> str:
        """Module with the functions of :class:`tuner.peers.base.Peer`."""
        return f"tuner.peers.{self.name.replace('-', '_')}"

    @property
    def fix(self) -> str:
        """Command that installs it."""
        if not self.extra:
            return f"pip install {' '.join(self.packages)}"
        return install_command(self.extra)

    def is_installed(self) -> bool:
        """Return whether its packages can be imported."""
        return all(map(importlib.util.find_spec, self.packages or (self.name,)))

    def description(self) -> str:
        """Return its name, version and devices; empty if it has none that is installed."""
        for name in self.distributions:
            try:
                version = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
            has_cuda = name == "onnxruntime-gpu" or (name == "torch" and "+cpu" not in version)
            devices = "GPU" if self.needs_gpu else "CPU, GPU" if has_cuda else "CPU"
            return f"{self.name} {version} ({devices})"
        return ""


_TORCH = PeerPackage(
    "torch", frozenset({"pt2"}), "torch", ("torch",), profiles=False, packages=("torch",)
)

#: In the order of a comparison; the first of a format is its default.
PEERS = (
    PeerPackage(
        "onnxruntime", frozenset({"onnx"}), "onnxruntime", ("onnxruntime", "onnxruntime-gpu")
    ),
    PeerPackage("openvino", frozenset({"onnx"}), "openvino", ("openvino",)),
    PeerPackage(
        "tensorrt",
        frozenset({"onnx"}),
        "",
        ("tensorrt",),
        profiles=False,
        packages=("tensorrt", "torch"),
        needs_gpu=True,
    ),
    _TORCH,
    replace(_TORCH, name="torch-cuda-graph", distributions=(), needs_gpu=True),
    replace(_TORCH, name="torch-compile", distributions=()),
)
