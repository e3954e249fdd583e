"""Additions for CUDA targets: NVRTC, device binaries."""

import importlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib import metadata, util
from pathlib import Path
from typing import Any, Literal

import tvm
from tvm.support import nvcc
from tvm.target import Target
from tvm.tirx import compilation_pipeline

from tuner.engines.linker import link_shared
from tuner.engines.relax.codegen.cpu import vector_functions
from tuner.engines.relax.graph.definitions import extremes
from tuner.engines.relax.ir.blobs import Blob, DeviceModule
from tuner.engines.relax.settings import PASS_CONFIG
from tuner.errors import RequestError, WorkError, install_command

#: Name of the passes for GPUs: TVM's default ones and this package's.
PIPELINE = "tuner-cuda"
_KERNEL = 'extern "C" __global__'
# Maxima that are NaN where an operand is, which TVM's are not.
_EXTREMES = """
static __forceinline__ __device__ float tuner_max(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
#else
  return a > b || a != a ? a : b;
#endif
}
static __forceinline__ __device__ double tuner_max(double a, double b) {
  return a > b || a != a ? a : b;
}
"""
# Headers that TVM includes for types of half precision, and their maxima.
_HALF_EXTREMES = {
    f"#include <cuda_{header}.h>": f"""
static __forceinline__ __device__ {dtype} tuner_max({dtype} a, {dtype} b) {{
  return __hmax_nan(a, b);
}}
"""
    for header, dtype in (("fp16", "__half"), ("bf16", "__nv_bfloat16"))
}

# TVM passes the values of these variables to NVRTC or nvcc.
_OPTIONS = (
    "TVM_CUDA_NVCC_NO_FAST_MATH",
    "TVM_CUDA_NVRTC_EXTRA_OPTS",
    "TVM_CUDA_PTXAS_EXTRA_OPTS",
    "TVM_CUDA_PTXAS_REG_LEVEL",
)
# TVM's variable that chooses between NVRTC and nvcc.
_MODE = "TVM_CUDA_COMPILE_MODE"
_VERSIONS = {
    "cuda": ("cuda.h", "CUDA_VERSION"),
    "cccl": ("cccl/cuda/std/__cccl/version.h", "CCCL_VERSION"),
}


def describe_compiler() -> dict[str, Any]:
    """Return the versions that device binaries depend on; None for a missing compiler."""
    headers = {}
    for name, (path, macro) in _VERSIONS.items():
        text = _read(_toolkit() / "include" / path)
        match = re.search(rf"#\s*define {macro} (\d+)", text)
        headers[name] = int(match[1]) if match else None
    options = {name: os.environ[name] for name in _OPTIONS if name in os.environ}
    if _uses_nvcc():
        return {"nvrtc": None, "nvcc": _nvcc_version(), "options": options}
    return {"nvrtc": _nvrtc_version(), "headers": headers, "options": options}


def build(module: tvm.IRModule, target: Target) -> tuple[tvm.runtime.Module, DeviceModule]:
    """Compile one kernel to host code and its device binary.

    Raises:
        RequestError: If NVRTC is not installed.
        WorkError: If it refuses the kernel.
    """
    built = lower(module, target)
    devices = Blob.of(built).devices
    if len(devices) != 1:
        raise WorkError("the schedule leaves nothing to the GPU")
    return built, compile_device(devices[0], target)


def lower(module: tvm.IRModule, target: Target) -> tvm.runtime.Module:
    """Compile kernels to host code, with the source of their device code."""
    with sources_kept(), tvm.transform.PassContext(config=PASS_CONFIG):
        return tvm.tirx.build(module, target=target, pipeline=PIPELINE)


def launches(module: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Lower kernels to host code that launches them, whose parameters are still buffers."""
    # The last two want packed arguments, for GPUs that lack types of 8 bits or bfloat16.
    skipped = ["tirx.MakePackedAPI", "tirx.FP8StorageLegalize", "tirx.BF16StorageLegalize"]
    context = tvm.transform.PassContext(config=PASS_CONFIG, disabled_pass=skipped)
    with context, target:
        bound = tvm.tirx.transform.BindTarget(target.with_host(Target("llvm")))(module)
        return _passes()[0](bound)


def _passes() -> tuple[Any, Any, Any]:
    lower, *others = compilation_pipeline.get_tir_pipeline("default")
    passes = [lower, extremes.start_at_infinity, extremes.call_cuda]
    return (tvm.transform.Sequential(passes), *others)


vector_functions.register_for_cuda()
compilation_pipeline.register_tir_pipeline(PIPELINE, _passes)


def compile_device(device: DeviceModule, target: Target) -> DeviceModule:
    """Compile the source of device code to a binary with NVRTC or nvcc; no GPU is needed.

    Raises:
        RequestError: If the compiler is not installed.
        WorkError: If it refuses the source.
    """
    return DeviceModule("cubin", device.table, compile_source(source_of(device), target, "cubin"))


def source_of(device: DeviceModule) -> str:
    """Return the source of device code as it is compiled."""
    source = _without_traits(device.code.decode())
    if not re.search(r"\btuner_(max|min)\(", source):
        return source
    head, kernel, rest = source.partition(_KERNEL)
    maxima = _EXTREMES + "".join(text for header, text in _HALF_EXTREMES.items() if header in head)
    minima = maxima.replace("max", "min").replace("a > b", "a < b")
    return "".join((head, maxima, minima, kernel, rest))


def compile_source(source: str, target: Target, form: Literal["cubin", "ptx"]) -> bytes:
    """Compile source to a binary, or to PTX; see :func:`compile_device`."""
    if _uses_nvcc():
        if _nvcc_version() is None:
            raise RequestError(
                f"{_MODE}=nvcc asks for nvcc, which is not on the PATH; install the CUDA toolkit, "
                f"or unset {_MODE} for NVRTC"
            )
        with target:
            return bytes(_compile(source, target, form, "nvcc", []))
    if _nvrtc_version() is None:
        raise RequestError(f"CUDA targets need NVRTC: {install_command('cuda')}")
    root = _toolkit()
    # TVM does not look for CCCL where Python packages install it.
    options = [f"-I{root / 'include' / 'cccl'}"]
    with _environment("CUDA_PATH", str(root)):
        return bytes(_compile(source, target, form, "nvrtc", options))


def _without_traits(source: str) -> str:
    """Remove unused libcu++ type traits, which take most of a compilation.

    TVM 0.27 includes them in every source, and hardly any kernel needs them.
    """
    head, traits, rest = source.partition("  #include <cuda/std/type_traits>\n  namespace std {\n")
    _, closed, rest = rest.partition("  }\n")
    needed = not (traits and closed) or re.search(r"(?<!cuda::)\bstd::", rest)
    return source if needed else head + rest


def _compile(
    source: str, target: Target, form: str, compiler: str, options: list[str]
) -> bytearray:
    arch = str(target.attrs["arch"])
    try:
        binary: bytearray = nvcc.compile_cuda(
            source, target_format=form, arch=arch, options=options, compiler=compiler
        )
    except RuntimeError as error:
        name = {"nvrtc": "NVRTC"}.get(compiler, compiler)
        raise WorkError(f"{name} refuses the kernel: {str(error)[-2000:]}") from error
    return binary


def _uses_nvcc() -> bool:
    """Return True if TVM's variable chooses nvcc.

    Raises:
        RequestError: If it names an unknown compiler.
    """
    mode = os.environ.get(_MODE, "nvrtc")
    if mode not in ("nvrtc", "nvcc"):
        raise RequestError(f"{_MODE} must be nvrtc or nvcc, got {mode!r}")
    return mode == "nvcc"


@lru_cache(maxsize=1)
def _nvcc_version() -> str | None:
    """Return the build version of nvcc; None if it is not installed."""
    try:
        done = subprocess.run(["nvcc", "--version"], capture_output=True, check=False, text=True)
    except OSError:
        return None
    match = re.search(r"V(\d[\d.]*)", done.stdout)
    return match[1] if match else None


def export(module: tvm.runtime.Module, devices: Sequence[DeviceModule], path: Path) -> None:
    """Export host code and device binaries as a library.

    Raises:
        WorkError: If the linker refuses.
    """
    with tempfile.TemporaryDirectory() as folder:
        host = Path(folder) / "host.o"
        module.write_to_file(str(host), "o")
        link_shared([host, Path(pack_devices(module, devices, Path(folder)))], path)


def compile_devices(module: tvm.runtime.Module, target: Target) -> list[DeviceModule]:
    """Compile the sources that a module carries.

    Raises:
        RequestError: If NVRTC is not installed.
        WorkError: If it refuses a source.
    """
    return [compile_device(device, target) for device in Blob.of(module).devices]


def pack_devices(module: tvm.runtime.Module, devices: Sequence[DeviceModule], folder: Path) -> str:
    """Write the object file that embeds device binaries in a library.

    Args:
        module: Exported module.
        devices: Binaries, in the place of the sources that it carries.
        folder: Output folder.

    Returns:
        The path of the object.
    """
    blob = Blob.of(module)
    blob.replace_devices(devices)
    path = folder / "modules.o"
    (host,) = (part for part in (module, *module.imports) if part.kind == "llvm")
    embed = tvm.get_global_func("codegen.codegen_blob")
    embed(blob.dump(), False, host["_get_target_string"](), "").write_to_file(str(path))
    return str(path)


@contextmanager
def sources_kept() -> Iterator[None]:
    """Make TVM keep device code as source, also where it could compile it."""
    with _environment("TVM_COMPILE_FORCE_FALLBACK", "1"):
        yield


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def _nvrtc_version() -> str | None:
    try:
        _, major, minor = importlib.import_module("cuda.bindings.nvrtc").nvrtcVersion()
    except (ImportError, RuntimeError, OSError):
        return None
    try:
        return metadata.version("nvidia-cuda-nvrtc")
    except metadata.PackageNotFoundError:
        return f"{major}.{minor}"


@lru_cache(maxsize=1)
def known_architectures() -> tuple[int, ...]:
    """Return the architectures that NVRTC compiles for, as numbers; none if it is missing."""
    try:
        _, known = importlib.import_module("cuda.bindings.nvrtc").nvrtcGetSupportedArchs()
    except (ImportError, RuntimeError, OSError):
        return ()
    return tuple(int(number) for number in known)


def _toolkit() -> Path:
    """Return the folder of CUDA's headers: the user's choice, the Python packages, the system's."""
    named = os.environ.get("CUDA_PATH")
    if named:
        return Path(named)
    spec = util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        if (Path(folder) / "cu13" / "include" / "cuda_runtime.h").is_file():
            return Path(folder) / "cu13"
    return Path("/usr/local/cuda")


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
