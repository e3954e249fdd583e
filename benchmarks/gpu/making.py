"""Folder with everything that a flight needs on a machine with a GPU, torch, and no network."""

import hashlib
import io
import json
import lzma
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from benchmarks.gpu.models import weights
from benchmarks.gpu.running import AGREE, ENCODED, FLIGHT, LIBRARIES, PACKS, SITE

MAX_BYTES = 64 << 20
UNTUNED, SHIPPED, TUNED = "untuned", "shipped", "tuned"
# What `tuner.load` imports besides NumPy; those of the second row have code for one Python.
_PURE = ("apache-tvm", "typing_extensions")
_COMPILED = ("apache-tvm-ffi", "ml_dtypes", "msgspec")
_SUFFIXES = (".py", ".so")
# It has 259 MB, and loading a library does not need it.
_COMPILER = "libtvm_compiler.so"
# Equal parts of weights are some layers apart.
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 16 << 20}]
_ROOT = Path(__file__).parents[2]
_MAIN = "from benchmarks.gpu.flight import main\n\nmain()\n"


@dataclass(frozen=True)
class Plan:
    """Contents of a flight.

    Attributes:
        networks: Names of the networks.
        target: Target of the libraries.
        python: Python of the machine with the GPU, such as ``3.12``.
        database: Options of ``tuner build`` that name the records; empty for untuned libraries
            alone.
        packs: Packs of candidates, as ``tuner pack make`` writes them.
        tiny: True for small networks, to rehearse.
        cache: Folder that keeps compiled objects for the next flight; None for none.
        agree: Folder of libraries of the corpus; None for none.
    """

    networks: Sequence[str]
    target: str
    python: str
    database: Sequence[str] = ()
    packs: Sequence[Path] = ()
    tiny: bool = False
    cache: Path | None = None
    agree: Path | None = None


def make(plan: Plan, out: Path) -> dict[str, Any]:
    """Write the folder of a flight; return its files with their sizes.

    Raises:
        SystemExit: If it is larger than 64 MiB.
        subprocess.CalledProcessError: If a library cannot be built, or pip finds no wheel.
    """
    shutil.rmtree(out, ignore_errors=True)
    for module in (_ROOT / "benchmarks" / "__init__.py", *Path(__file__).parent.rglob("*.py")):
        _copy(module, out / module.relative_to(_ROOT))
    (out / "__main__.py").write_text(_MAIN)
    for pack in plan.packs:
        (out / PACKS).mkdir(exist_ok=True)
        shutil.copy(pack, out / PACKS)
    if plan.agree:
        shutil.copytree(plan.agree, out / AGREE, ignore=lambda _, names: _unfinished(names))
    with tempfile.TemporaryDirectory(prefix="flight-") as scratch:
        _write_site(out / SITE, plan.python, Path(scratch))
        builds = {
            network: _build(network, plan, out / LIBRARIES, Path(scratch))
            for network in plan.networks
        }
    command = ["git", "describe", "--always", "--dirty"]
    asked = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    described = {
        "networks": list(plan.networks), "tiny": plan.tiny, "target": plan.target,
        "python": plan.python, "builds": builds, "commit": asked.stdout.strip(),
        "tvm": metadata.version("apache-tvm"),
    }  # fmt: skip
    (out / FLIGHT).write_text(json.dumps(described, indent=1))
    sizes = {str(p.relative_to(out)): p.stat().st_size for p in out.rglob("*") if p.is_file()}
    if sum(sizes.values()) > MAX_BYTES:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:5]
        named = ", ".join(f"{name} {sizes[name] >> 20} MiB" for name in largest)
        raise SystemExit(f"the flight is larger than {MAX_BYTES >> 20} MiB: {named}")
    return sizes


def _unfinished(names: Sequence[str]) -> list[str]:
    return [name for name in names if name.startswith(".") or not name.endswith(".tar.xz")]


def _build(name: str, plan: Plan, out: Path, scratch: Path) -> dict[str, Any]:
    """Build the libraries of a network; return what ``tuner build`` prints, by label."""
    from benchmarks.gpu.models.networks import Network
    from benchmarks.gpu.models.sizes import FULL, TINY

    model = scratch / f"{name}.onnx"
    Network(name, TINY if plan.tiny else FULL).export(str(model))
    # A database with the records that come with the package keeps them for every network.
    databases = {label: ["--data-dir", str(scratch / label)] for label in (UNTUNED, SHIPPED)}
    if plan.database:
        databases[TUNED] = [*plan.database]
    printed = {}
    for label, options in databases.items():
        print(f"{name}, {label}", file=sys.stderr, flush=True)
        library = scratch / name / label / f"{name}.lib"
        words = [str(model), "--target", plan.target, "--out", str(library), "--json", *options]
        command = [sys.executable, "-m", "tuner", "build", *words]
        environ = dict(os.environ, TUNER_SHIPPED_RECORDS="off" if label == UNTUNED else "on")
        if label != TUNED:
            environ["TUNER_CACHE_DIR"] = str(plan.cache or scratch / "cache")
        built = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environ)
        printed[label] = json.loads(built.stdout)
        if label == SHIPPED and not printed[label]["tuned"]:
            shutil.rmtree(library)
            del printed[label]
    pack(out / f"{name}.tar.xz", scratch / name, (scratch / name).rglob("*"))
    return printed


def _write_site(path: Path, python: str, scratch: Path) -> None:
    """Pack the tuner and what it loads libraries with, for a version of Python."""
    site = scratch / "site"
    is_other = python != ".".join(platform.python_version_tuple()[:2])
    if is_other:
        _download(python, scratch / "wheels", site)
    for name in _PURE if is_other else (*_PURE, *_COMPILED):
        for file in metadata.files(name) or ():
            _copy(Path(str(file.locate())), site / str(file))
    for source in (_ROOT / "tuner").rglob("*.py"):
        _copy(source, site / source.relative_to(_ROOT))
    pack(path, site, site.rglob("*"))


def _download(python: str, wheels: Path, site: Path) -> None:
    """Unpack the wheels of another version of Python."""
    pins = [f"{name}=={metadata.version(name)}" for name in _COMPILED]
    options = ["--only-binary=:all:", "--no-deps", "--python-version", python, "-d", str(wheels)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *options, *pins]
    subprocess.run(command, check=True)
    for wheel in wheels.glob("*.whl"):
        with ZipFile(wheel) as archive:
            archive.extractall(wheels / wheel.stem)
        for source in (wheels / wheel.stem).rglob("*"):
            _copy(source, site / source.relative_to(wheels / wheel.stem))


def _copy(source: Path, to: Path) -> None:
    is_needed = source.suffix in _SUFFIXES or source.name == "METADATA"
    if source.is_file() and is_needed and source.name != _COMPILER:
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, to)


def pack(path: Path, root: Path, files: Iterable[Path]) -> None:
    """Write a compressed archive, the same for the same files, with encoded weights.

    Equal files are one, as the weights of two libraries of a network are.
    """
    first: dict[bytes, str] = {}
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        lzma.open(path, "wb", filters=_FILTERS) as stream,
        tarfile.open(None, "w", stream) as archive,
    ):
        for file in sorted(files):
            if file.is_file():
                entry = tarfile.TarInfo(str(file.relative_to(root)))
                data = file.read_bytes()
                if file.suffix == ".bin":
                    entry.name += ENCODED
                    data = weights.encode(data)
                digest = hashlib.sha256(data).digest()
                if digest in first:
                    entry.type, entry.linkname, data = tarfile.LNKTYPE, first[digest], b""
                first.setdefault(digest, entry.name)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
