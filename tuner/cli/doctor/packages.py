"""Checks of the tuner itself, of Python and of the packages that the tuner uses."""

import importlib.metadata
import platform
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet

from tuner.cli.doctor.check import Check
from tuner.errors import install_command
from tuner.peers.catalogue import PEERS

_FFI_HAZARD = "0.1.15 crashes in tvm.ir.save_json and 0.1.13 does not import"


@dataclass(frozen=True)
class Package:
    """A Python package.

    Attributes:
        name: Name of the distribution.
        required: Versions, as in pyproject.toml.
        extra: Extra that installs it; empty if it is essential.
        purpose: Use of an optional package.
        alternative: Name of another distribution of the same package.
    """

    name: str
    required: str
    extra: str = ""
    purpose: str = ""
    alternative: str = ""


PACKAGES = (
    Package("apache-tvm", "==0.27.0.post1"),
    Package("apache-tvm-ffi", "==0.1.14.post1"),
    Package("xgboost-cpu", ">=3.2,<4", alternative="xgboost"),
    Package("numpy", ">=2.0"),
    Package("scipy", ">=1.13"),
    Package("onnx", ">=1.18"),
    Package("onnxslim", ">=0.1.98"),
    Package("fastapi", ">=0.130", "serve", "serves the REST API and the dashboard"),
    Package("onnxruntime", ">=1.23", "onnxruntime", "compares in tuner bench", "onnxruntime-gpu"),
    Package("openvino", ">=2025.1", "openvino", "compares in tuner bench"),
    Package("torch", ">=2.8", "torch", "reads .pt2 models"),
    Package("onednn-cpu-gomp", "==2023.2.*", "onednn", "competes in targets such as llvm+onednn"),
    Package("psycopg", ">=3.2", "postgresql", "connects to PostgreSQL"),
    Package("cuda-bindings", ">=13.0,<14", "cuda", "compiles for NVIDIA GPUs"),
    Package("nvidia-ml-py", ">=13", "cuda", "lists NVIDIA GPUs and reads their clocks"),
    Package("triton", "==3.6.*", "triton", "compiles kernels for tensor cores"),
    Package("tornado", ">=6.4", "rpc", "runs TVM's RPC tracker and servers here"),
)


def check_tuner() -> Check:
    """Report the version of the tuner."""
    version = _version("subgraph-tuner")
    if version is None:
        return Check("tuner", "ok", f"not installed, runs from {Path(__file__).parents[3]}")
    return Check("tuner", "ok", version)


def check_python() -> Check:
    """Report the version of Python; older ones than 3.11 cannot import the tuner."""
    return Check("python", "ok", platform.python_version())


def check_package(package: Package) -> Check:
    """Compare the installed version of a package with the required one."""
    version = _version(package.name)
    if version is None and package.alternative:
        version = _version(package.alternative)
    essential = not package.extra
    fix = f"pip install '{package.name}{package.required}'"
    if version is None:
        result = "not installed" + (f"; optional, {package.purpose}" if package.extra else "")
        if package.extra:
            fix = install_command(package.extra)
        return Check(package.name, "missing", result, fix, essential)
    if satisfies(version, package.required):
        return Check(package.name, "ok", version, essential=essential)
    hazard = f"; {_FFI_HAZARD}" if package.name == "apache-tvm-ffi" else ""
    result = f"{version}, not {package.required}{hazard}"
    return Check(package.name, "warning", result, fix, essential)


def check_peers() -> Check:
    """List the runtimes that ``tuner bench --against`` can compare with."""
    peers = [text for peer in PEERS if (text := peer.description())]
    if not peers:
        fix = PEERS[0].fix
        return Check("peers", "missing", "none: bench compares nothing", fix, essential=False)
    return Check("peers", "ok", ", ".join(peers), essential=False)


def satisfies(version: str, required: str) -> bool:
    """Return whether a version meets every clause of a requirement."""
    return SpecifierSet(required).contains(version, prereleases=True)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name) or None
    except importlib.metadata.PackageNotFoundError:
        return None
