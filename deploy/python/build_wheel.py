"""Build the wheel subgraph-tuner-runtime: libtuner.so, TVM's runtime, and the Python around them.

    python -m deploy.python.build_wheel PREFIX FOLDER

PREFIX is where ``cmake --install`` put the libraries of ``deploy/c``, FOLDER gets the wheel.
"""

import base64
import hashlib
import re
import sys
import sysconfig
import zipfile
from importlib.metadata import distribution, version
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_NAME, _PACKAGE = "subgraph_tuner_runtime", "tuner_runtime"
# Modules of the tuner that loading needs; none imports more than NumPy and msgspec.
_MODULES = (
    "errors",
    *("library/__init__", "library/arrays", "library/buckets", "library/constant_inputs"),
    *("library/limits", "library/manifest", "library/processors", "library/tails"),
    *("library/threads", "library/wrapper"),
)
_LIBRARIES = ("libtuner.so", "libtvm_runtime.so", "libtvm_ffi.so")
_METADATA = """Metadata-Version: 2.1
Name: subgraph-tuner-runtime
Version: {version}
Summary: Runs libraries of Subgraph Tuner without the tuner and without TVM's compiler
License: Apache-2.0
Requires-Python: >=3.11
Requires-Dist: numpy>=1.26
Requires-Dist: msgspec>=0.19
Provides-Extra: onnxruntime
Requires-Dist: onnxruntime>=1.23; extra == "onnxruntime"

Contains the runtime libraries of apache-tvm {tvm} and apache-tvm-ffi {ffi}.
"""


def main(prefix: Path, folder: Path) -> Path:
    """Write the wheel; return its path."""
    platform = re.sub(r"\W", "_", sysconfig.get_platform())
    release = version("subgraph-tuner")
    tag, info = f"py3-none-{platform}", f"{_NAME}-{release}.dist-info"
    files = {f"{_PACKAGE}/{name}": content for name, content in _code().items()}
    files |= {f"{_PACKAGE}/lib/{name}": (prefix / "lib" / name).read_bytes() for name in _LIBRARIES}
    files[f"{info}/licenses/LICENSE"] = (_ROOT / "LICENSE").read_bytes()
    for package in ("apache-tvm", "apache-tvm-ffi"):
        for file in distribution(package).files or ():
            if file.parent.name == "licenses" or file.name == "NOTICE":
                files[f"{info}/licenses/{package}/{file.name}"] = file.read_binary()
    metadata = _METADATA.format(
        version=release, tvm=version("apache-tvm"), ffi=version("apache-tvm-ffi")
    )
    files[f"{info}/METADATA"] = metadata.encode()
    wheel = f"Wheel-Version: 1.0\nGenerator: build_wheel\nRoot-Is-Purelib: false\nTag: {tag}\n"
    files[f"{info}/WHEEL"] = wheel.encode()
    lines = [f"{name},{_digest(content)},{len(content)}" for name, content in files.items()]
    record = f"{info}/RECORD"
    files[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{_NAME}-{release}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return path


def _code() -> dict[str, bytes]:
    """Return the modules by name, with imports of each other in the package of the wheel."""
    own = Path(__file__).parent / _PACKAGE
    paths = {path.name: path for path in own.glob("*.py")}
    paths |= {f"{name}.py": _ROOT / "tuner" / f"{name}.py" for name in _MODULES}
    code = {}
    for name in sorted(paths):
        text = paths[name].read_text().replace(f"deploy.python.{_PACKAGE}", _PACKAGE)
        text = re.sub(r"\b(from|import) tuner\b", rf"\1 {_PACKAGE}", text)
        code[name] = text.encode()
    return code


def _digest(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"


if __name__ == "__main__":
    print(main(*map(Path, sys.argv[1:3])))
