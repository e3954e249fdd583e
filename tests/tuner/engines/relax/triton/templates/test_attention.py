"""Attention as one kernel agrees with its workload, in Triton's interpreter."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import tirx

from tests.gpu_compilers import needs_triton
from tests.tuner.engines.relax import networks
from tests.tuner.engines.relax.triton.conftest import (
    SPEC,
    Verify,
    attention,
    broken,
    match,
    product,
)
from tests.tuner.engines.relax.triton.steps import save_step
from tuner.engines.relax.codegen.build import n_outputs
from tuner.engines.relax.graph.definitions.softmax import masked_softmax
from tuner.engines.relax.graph.extract import extract
from tuner.engines.relax.graph.pipeline import lower
from tuner.engines.relax.ir import workloads
from tuner.engines.relax.target.targets import make_target
from tuner.engines.relax.triton.compilation import compiler
from tuner.engines.relax.triton.programs import Program
from tuner.engines.relax.triton.templates.attention import (
    Attention,
    Configuration,
    print_program,
    ranked,
)

pytestmark = needs_triton

_SMALL = Configuration(16, 32, 2, 4)
# Without tensor cores, and with keys that three blocks share.
_ONE_ROW, _SHARED = Configuration(1, 16, 1, 2, 3), Configuration(16, 16, 1, 4, 3)


def program_of(ir: bytes, configuration: Configuration = _SMALL) -> Program:
    """Print the kernel of a workload that Triton has to match."""
    return print_program(match(Attention, ir), configuration)


def _causal(score: Any, row: Any, key: Any) -> Any:
    return tirx.Select(key <= row, score, tirx.const(-1e9, "float32"))


def _biased(score: Any, row: Any, key: Any) -> Any:
    distance = (row - key).astype("float32")
    return tirx.tanh(score) * tirx.const(4.0, "float32") - distance * tirx.const(0.125, "float32")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_tiles_need_not_divide_an_attention(dtype: str, verify: Verify) -> None:
    """Rows, keys and the numbers of a query end inside of a tile."""
    ir = attention((2, 2), (21, 43, 24), dtype)

    assert verify(ir, program_of(ir)) == ""


@pytest.mark.parametrize(
    ("heads", "sizes", "changed"),
    [
        ((4, 2), (7, 40, 16), None),
        ((4, 1), (1, 70, 16), None),
        ((2, 2), (20, 20, 16), _causal),
        ((2, 2), (5, 33, 16), _biased),
    ],
    ids=["shared keys", "one row of heads", "causal", "biased"],
)
def test_scores_are_those_of_the_workload(
    heads: tuple[int, int],
    sizes: tuple[int, int, int],
    changed: Callable[[Any, Any, Any], Any] | None,
    verify: Verify,
) -> None:
    """Heads may share keys and values; masks and biases are printed from the workload."""
    ir = attention(heads, sizes, changed=changed)

    assert verify(ir, program_of(ir)) == ""


def _hidden(score: Any, row: Any, key: Any) -> Any:
    """Hide most keys, and all from the first row."""
    return tirx.Select(tirx.And(key < 4, row > 0), score, tirx.const(-np.inf, "float32"))


@pytest.mark.parametrize(
    ("configuration", "heads", "sizes", "changed"),
    [
        (_ONE_ROW, (5, 5), (1, 48, 64), _biased),
        (replace(_ONE_ROW, n_splits=1), (2, 2), (1, 43, 16), None),
        (_SHARED, (2, 2), (3, 43, 16), _hidden),
        (_SHARED, (1, 1), (21, 96, 16), _biased),
        (replace(_ONE_ROW, is_one_kernel=True), (2, 2), (1, 43, 24), None),
        (replace(_SHARED, is_one_kernel=True), (2, 2), (3, 43, 16), _hidden),
    ],
    ids=[
        *("biased row", "whole row", "parts without keys", "rows"),
        *("last row", "last without keys"),
    ],
)
def test_blocks_may_share_keys(
    configuration: Configuration,
    heads: tuple[int, int],
    sizes: tuple[int, int, int],
    changed: Callable[[Any, Any, Any], Any] | None,
    verify: Verify,
) -> None:
    """Parts of the keys are combined, whether or not they divide over the parts."""
    ir = attention(heads, sizes, changed=changed)

    assert Configuration.named(configuration.name) == configuration
    assert verify(ir, program_of(ir, configuration)) == ""


@pytest.mark.parametrize(
    ("configuration", "replaces_nan"), [(_SMALL, False), (_SHARED, True)], ids=["whole", "parts"]
)
def test_masked_rows_are_zero(
    configuration: Configuration, *, replaces_nan: bool, verify: Verify
) -> None:
    """A row without keys is zero; with another number, the workload has no kernel."""
    ir, other = (
        attention(
            *((2, 2), (3, 43, 16)),
            changed=_hidden,
            softmax=partial(masked_softmax, fill=fill, replaces_nan=replaces_nan, has_lanes=False),
        )
        for fill in (0.0, 1.0)
    )

    assert Attention.find(workloads.load(other)["main"]) is None
    assert verify(ir, program_of(ir, configuration)) == ""


def test_one_row_is_summed_in_float32(verify: Verify) -> None:
    """It needs no tensor cores."""
    ir = attention((2, 2), (1, 43, 16), "bfloat16")

    assert verify(ir, program_of(ir, _ONE_ROW)) == ""


@pytest.mark.parametrize(
    ("number", "old", "new", "is_one_kernel"),
    [
        (0, "turn += part * 1", "turn += 0", False),
        (1, "scale * tl.load(row", "tl.load(row", False),
        (0, "static_range(1, 3)", "static_range(1, 2)", True),
    ],
)
def test_broken_parts_are_found(
    number: int, old: str, new: str, *, is_one_kernel: bool, verify: Verify
) -> None:
    """A part that is lost or scaled wrongly fails the verification."""
    ir = attention((2, 2), (1, 43, 32))
    program = program_of(ir, replace(_ONE_ROW, is_one_kernel=is_one_kernel))

    assert verify(ir, broken(program, old, new, number)) != ""


def test_heads_that_share_keys_are_rows() -> None:
    """The rows of heads with the same keys are in the same block."""
    matched = match(Attention, attention((8, 2), (1, 64, 16)))
    assert (matched.context.n_batches, matched.context.n_rows) == (2, 4)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("acc * scale[:, None]", "acc"),
        ('"-inf"))', '"-1"))'),
        ("range(2)", "range(1)"),
    ],
)
def test_broken_kernels_are_found(old: str, new: str, verify: Verify) -> None:
    """A template with an error fails its verification."""
    ir = attention((2, 2), (21, 43, 24))

    assert verify(ir, broken(program_of(ir), old, new)) != ""


def test_other_workloads_are_not_attention() -> None:
    """A product alone is not matched."""
    assert Attention.find(workloads.load(product((1, 16, 16, 32)))["main"]) is None


def test_products_run_on_tensor_cores() -> None:
    """The first choice for a layer of BERT loads keys ahead, and spills no register."""
    matched = match(Attention, attention((12, 12), (128, 128, 64)))

    first = ranked(matched, 90)[0]
    facts = compiler.compile_kernel(print_program(matched, first).kernels[0], "sm_90").facts

    assert Configuration.named(first.name) == first
    assert facts.uses_tensor_cores
    assert facts.stack_bytes == 0


@pytest.mark.parametrize(
    ("heads", "n_new", "tokens_first", "configuration"),
    [((4, 2), 1, True, _SMALL), ((4, 2), 3, False, _SHARED)],
    ids=["tokens first", "some tokens"],
)
def test_caches_are_read_where_they_are(
    heads: tuple[int, int],
    n_new: int,
    configuration: Configuration,
    *,
    tokens_first: bool,
    tmp_path: Path,
    verify: Verify,
) -> None:
    """Caches are not copied, and new keys and values are stored by the same kernel."""
    file = save_step(tmp_path, heads, (45, n_new), tokens_first=tokens_first)
    (task,) = extract(file, SPEC).tasks

    assert n_outputs(workloads.load(task.ir)["main"]) == len(("y", "new_k", "new_v"))
    assert verify(task.ir, program_of(task.ir, configuration)) == ""


def test_new_keys_are_outputs_of_the_network(tmp_path: Path) -> None:
    """A network whose attention is one kernel has the outputs of one whose kernels are apart."""
    file = save_step(tmp_path, (4, 2), (45, 3), tokens_first=False)
    rng = np.random.default_rng(0)
    feeds = {
        name: rng.standard_normal(shape).astype(dtype)
        for name, (shape, dtype) in file.inputs.items()
    }
    cpu = '{"kind":"llvm"}'

    outputs, expected = (
        networks.run_module(lower(file, make_target(spec)), file, feeds, cpu)
        for spec in (SPEC, cpu)
    )

    for output, each in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(output, each, atol=2e-3, rtol=2e-3)


def test_the_keys_of_a_step_fill_a_gpu() -> None:
    """Blocks share the keys of a step, and the kernels spill no register."""
    matched = match(Attention, attention((32, 8), (1, 1024, 64)))

    program = print_program(matched, ranked(matched, 90)[0])

    (kernel,) = program.kernels
    assert 64 <= kernel.n_blocks <= 4 * 132
    assert compiler.compile_kernel(kernel, "sm_90").facts.stack_bytes == 0
