"""Triton's kernels are compiled without a GPU, and their binaries are read."""

import re
from dataclasses import replace
from typing import Any

import pytest
from tvm import tirx

from tests.gpu_compilers import needs_triton
from tests.tuner.engines.relax.triton.conftest import convolution, match, product
from tuner.engines.relax.triton.compilation import compiler
from tuner.engines.relax.triton.compilation.compiler import compile_kernel
from tuner.engines.relax.triton.programs import Kernel, named_by_content
from tuner.engines.relax.triton.templates.configurations import Configuration
from tuner.engines.relax.triton.templates.contractions import Contraction
from tuner.engines.relax.triton.templates.gemm import print_program
from tuner.errors import RequestError, WorkError

pytestmark = needs_triton


def kernels_of(ir: bytes, configuration: Configuration) -> tuple[Kernel, ...]:
    """Print the kernels of a workload."""
    contraction = match(Contraction, ir)
    return print_program(contraction, configuration).kernels


@pytest.mark.parametrize(
    ("arch", "binary_arch"),
    [
        *(("sm_80", "sm_80"), ("sm_90", "sm_90a"), ("sm_120a", "sm_120a")),
        *(
            pytest.param(*names, marks=pytest.mark.slow("its neighbours are compiled always"))
            for names in (
                *(("sm_86", "sm_86"), ("sm_89", "sm_89")),
                *(("sm_90a", "sm_90a"), ("sm_100a", "sm_100a")),
            )
        ),
    ],
)
def test_products_run_on_tensor_cores(arch: str, binary_arch: str) -> None:
    """The binary is for the architecture, copies its operands ahead and spills no register."""
    (kernel,) = kernels_of(product((1, 128, 128, 256)), Configuration(64, 64, 32, 3, 4))
    assert compiler.supports(arch)

    binary = compile_kernel(kernel, arch)

    assert binary.code[:4] == b"\x7fELF"
    assert (binary.n_parameters, binary.n_threads) == (6, 128)
    assert 2 * 64 * 32 * 2 * 2 <= binary.shared_bytes <= 3 * 64 * 32 * 2 * 2 + 1024
    facts = binary.facts
    assert facts.binary_arch == binary_arch
    assert facts.uses_tensor_cores
    assert (facts.n_wgmma > 0) == (binary_arch == "sm_90a")
    assert facts.n_async_copies > 0
    assert facts.waits == (compiler.number_of(arch) >= 90)
    assert facts.stack_bytes == 0
    assert 32 <= facts.n_registers <= 255


def test_counters_are_variables_of_the_binary() -> None:
    """Their address is not passed, and each loaded binary has its own."""
    split = Configuration(64, 64, 32, 3, 4, 2, is_one_kernel=True)
    (kernel,) = kernels_of(product((1, 128, 192, 256)), split)

    binary = compile_kernel(kernel, "sm_90")

    assert kernel.n_counters == 2 * 3
    assert f"{kernel.name}_counters".encode() in binary.code
    assert b"\0.nv.global\0" in binary.code


@pytest.mark.parametrize(
    "arch",
    [
        *("sm_80", "sm_90", "sm_120a"),
        *(
            pytest.param(name, marks=pytest.mark.slow("its neighbours are compiled always"))
            for name in ("sm_86", "sm_89")
        ),
    ],
)
def test_blocks_that_arrive_have_stored_their_parts(arch: str) -> None:
    """The threads of a block meet before one of them counts, and again before they load.

    The last block then copies all parts at once, and has loaded the bias before.
    """
    split = Configuration(64, 64, 64, 4, 4, 4, is_one_kernel=True)
    (kernel,) = kernels_of(product((1, 120, 192, 1024)), split)

    ptx = compiler.print_ptx(kernel, arch)
    facts = compile_kernel(kernel, arch).facts

    before, count, after = ptx.partition("atom.global.gpu.acq_rel.add")
    assert count
    assert before.rindex("st.global") < before.rindex("bar.sync")
    assert after.index("bar.sync") < after.index("cp.async")
    copied, _, _ = after.partition("cp.async.wait_group")
    assert copied.count("cp.async.commit_group") == split.n_splits
    assert "ld.global" not in after
    assert facts.stack_bytes == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8"])
def test_other_types_run_on_tensor_cores(dtype: str) -> None:
    """float32 is multiplied as three products of shorter numbers."""
    (kernel,) = kernels_of(product((1, 64, 64, 128), dtype), Configuration(64, 64, 32, 2, 4))

    facts = compile_kernel(kernel, "sm_80").facts

    assert facts.n_mma > 0
    assert facts.stack_bytes == 0


def test_functions_of_sources_compile() -> None:
    """Sources define functions that Triton does not have, and call them."""
    names = ("tanh", "sigmoid", "nearbyint", "log1p")

    def after(value: Any) -> Any:
        value = value.astype("float32")
        return sum(getattr(tirx, name)(value) for name in names)

    ir = product((1, 64, 64, 64), after=after, out_dtype="float32")
    (kernel,) = kernels_of(ir, Configuration(64, 64, 32, 2, 4))

    assert all(f"_{name}(" in kernel.source for name in names)
    assert compile_kernel(kernel, "sm_90").facts.uses_tensor_cores


def test_windows_are_copied_ahead() -> None:
    """A convolution reads its image by whole rows of channels, as a product its operands."""
    configuration = Configuration(64, 64, 64, 3, 4)
    (kernel,) = kernels_of(convolution(14, (64, 64), 3), configuration)

    facts = compile_kernel(kernel, "sm_90").facts

    assert facts.n_wgmma > 0
    assert facts.n_async_copies > 0


def test_no_operation_is_on_pairs_of_numbers() -> None:
    """The assembler may lose constants of such operations, which LLVM makes of small integers."""
    lines = ["i = tl.arange(0, 256)", "tl.store(p0 + i, (i * 7 + 3) % 100 + (i * 5 + 3) % 100)"]
    source = "\n    ".join(["@triton.jit\ndef KERNEL(p0):", *lines])
    kernel = named_by_content("pairs", source, (("p0", "int32"),), (1, 4, 1))

    ptx = compiler.print_ptx(kernel, "sm_90")

    assert "add.s16 %pair1, %pair1, %pair3;" in ptx
    assert not re.search(r"\.[su]16x2\b", ptx)


def test_spilled_registers_are_read() -> None:
    """A tile that is too large for the registers of its threads uses a stack."""
    (kernel,) = kernels_of(product((1, 256, 256, 64)), Configuration(128, 256, 32, 2, 4))

    assert compile_kernel(kernel, "sm_80").facts.stack_bytes > 0


def test_equal_kernels_have_equal_binaries() -> None:
    """The bytes follow from the kernel alone, and so does its name."""
    first, again = (
        kernels_of(product((1, 32, 32, 32)), Configuration(16, 32, 32, 2, 4))[0] for _ in range(2)
    )
    other = kernels_of(product((1, 32, 32, 32)), Configuration(32, 32, 32, 2, 4))[0]

    binary = compile_kernel(first, "sm_80")
    compile_kernel.cache_clear()

    assert first.name == again.name != other.name
    assert compile_kernel(again, "sm_80") == binary
    assert first.name.encode() in binary.code


def test_refused_kernels_are_errors(capsys: pytest.CaptureFixture[str]) -> None:
    """The message contains Triton's reason, and nothing is printed."""
    (kernel,) = kernels_of(product((1, 32, 32, 32)), Configuration(16, 32, 32, 2, 4))
    broken = replace(kernel, source=kernel.source.replace("tl.dot(", "tl.unknown("))

    with pytest.raises(WorkError, match=r"Triton refuses the kernel: .*unknown"):
        compile_kernel(broken, "sm_80")

    assert capsys.readouterr().out == ""


def test_missing_triton_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message contains the command that installs it."""
    (kernel,) = kernels_of(product((1, 32, 32, 48)), Configuration(16, 32, 16, 2, 4))
    monkeypatch.setattr(compiler, "is_installed", lambda: False)

    with pytest.raises(RequestError, match=r"pip install 'subgraph-tuner\[triton\]'"):
        compile_kernel(kernel, "sm_80")


@pytest.mark.parametrize("arch", ["sm_75", "sm_100", "sm_120f", "gfx906"])
def test_other_architectures_have_no_kernels(arch: str) -> None:
    """Triton's binaries for newer GPUs run on one of them alone: the target has to name it."""
    assert not compiler.supports(arch)


def test_only_binaries_are_read() -> None:
    """Another file is an error."""
    with pytest.raises(ValueError, match="not a 64-bit ELF file"):
        compiler.read(b"text", "")
