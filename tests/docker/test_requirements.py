"""The lists that the images install hold all that the code in them imports, and no more."""

import ast
import json
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.docker import images
from tests.docker.images import ROOT

_OURS = {"api", "records", "scheduler", "tuner"}

# What the worker's image does without, since no job of the service needs it.
_LEFT_OUT = {
    "IPython", "matplotlib", "onnxruntime", "onnxscript", "openvino", "pandas", "tensorrt",
    "torch",
}  # fmt: skip

# Imports every module of the packages named, in an interpreter that finds only what is listed.
_IMPORT_ALL = """
import importlib, json, pkgutil, sys

blocked, packages = json.loads(sys.argv[1])

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"{name} is not in the list", name=name)

sys.meta_path.insert(0, Missing())
for package in packages:
    module = importlib.import_module(package)
    for found in pkgutil.walk_packages(module.__path__, package + "."):
        if not found.name.endswith(("__main__", "migrations.env")):  # these run when imported
            importlib.import_module(found.name)
"""


@cache
def brought_by(path: str) -> frozenset[str]:
    """Return the distributions that a list brings, with all they need, by canonical name."""
    return images.closure(images.read_names(path))


@cache
def modules_of(path: str) -> frozenset[str]:
    """Return the top-level modules that a list brings."""
    brought = brought_by(path)
    return frozenset(
        module
        for module, names in metadata.packages_distributions().items()
        if brought & {canonicalize_name(name) for name in names}
    )


@cache
def imports_of(package: str) -> frozenset[tuple[Path, str]]:
    """Return each module of others that the files of a package import, inside functions too."""
    imported: set[tuple[Path, str]] = set()
    for file in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            else:
                continue
            imported |= {(file.relative_to(ROOT), name.partition(".")[0]) for name in names}
    return frozenset(each for each in imported if each[1] not in _OURS | sys.stdlib_module_names)


@pytest.mark.in_ci
@pytest.mark.slow("5 s of imports")
def test_api_image_imports_without_the_heavy_ones() -> None:
    """Every module of the API, of the records and of the command line loads from the list alone."""
    allowed = modules_of("docker/api-requirements.txt") | _OURS
    blocked = sorted(set(metadata.packages_distributions()) - allowed)
    assert {"tvm", "xgboost", "onnx", "scipy"} <= set(blocked)
    packages = ["records", "api", "tuner.cli.commands"]
    tried = subprocess.run(
        [sys.executable, "-c", _IMPORT_ALL, json.dumps([blocked, packages])],
        capture_output=True, text=True, cwd=ROOT, timeout=120, check=False,
    )  # fmt: skip
    assert tried.returncode == 0, tried.stderr


@pytest.mark.parametrize("package", ["api", "records", "scheduler"])
def test_api_list_has_what_is_imported_late(package: str) -> None:
    """Nothing is missing that a function imports when it is called."""
    brought = modules_of("docker/api-requirements.txt")
    missing = {(str(file), name) for file, name in imports_of(package) if name not in brought}
    assert not missing


@pytest.mark.parametrize("package", ["tuner", "records", "scheduler"])
def test_worker_list_has_what_is_imported_late(package: str) -> None:
    """Nothing is missing but what the service never calls; what GPUs need is in the CUDA list."""
    lists = ("docker/worker-requirements.txt", "docker/cuda-requirements.txt")
    brought = _LEFT_OUT.union(*map(modules_of, lists))
    missing = {(str(file), name) for file, name in imports_of(package) if name not in brought}
    assert not missing


@pytest.mark.parametrize("name", ["api", "worker"])
def test_lists_are_those_of_the_project(name: str) -> None:
    """A list takes from pyproject.toml, and constraints.txt pins all that it brings."""
    project = images.read_project()
    extras = project["optional-dependencies"]
    known = [*project["dependencies"], *extras["serve"], *extras["postgresql"]]
    path = f"docker/{name}-requirements.txt"
    listed = {canonicalize_name(Requirement(line).name) for line in images.read_names(path)}
    assert listed <= {canonicalize_name(Requirement(line).name) for line in known}
    pinned = {canonicalize_name(Requirement(n).name) for n in images.read_names("constraints.txt")}
    assert brought_by(path) <= pinned


def test_cuda_list_is_pinned() -> None:
    """The CUDA variant adds the extra ``cuda``, in exact versions of one CUDA release."""
    listed = images.read_names("docker/cuda-requirements.txt")
    versions = {item.name: str(item.specifier) for item in map(Requirement, listed)}
    extra = map(Requirement, images.read_project()["optional-dependencies"]["cuda"])
    assert {item.name for item in extra} == set(versions)
    assert set(listed) <= set(images.read_names("constraints.txt"))
    assert versions.pop("nvidia-ml-py")  # is numbered apart from CUDA
    assert all(version.startswith("==13.0.") for version in versions.values())
