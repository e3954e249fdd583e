"""Default schedules for a GPU compute what their kernels compute; the CPU runs their threads."""

import re

import numpy as np
import pytest
import tvm
from tvm import te, topi

from tests.tuner.engines.relax.conftest import Array, draw
from tests.tuner.engines.relax.networks import run_kernel
from tuner.engines.relax.graph.definitions import sorts
from tuner.engines.relax.schedules.gpu import block_limits, defaults
from tuner.engines.relax.schedules.gpu.defaults import schedule_by_default
from tuner.engines.relax.target.targets import describe_target, make_target
from tuner.errors import WorkError

_THREADS = r'T\.thread_binding\((.*?), thread="[^"]*"(?:, annotations=\{.*?\})?\)'


@pytest.fixture(scope="module")
def target() -> tvm.target.Target:
    """A GPU that is absent."""
    return make_target(describe_target("cuda:sm_90").spec)


def product(n_rows: int, n_terms: int, n_columns: int, dtype: str = "float32") -> tvm.IRModule:
    """Return a product with a residual as one kernel."""
    a = te.placeholder((3, n_rows, n_terms), dtype, name="a")
    b = te.placeholder((3, n_terms, n_columns), dtype, name="b")
    c = te.placeholder((3, n_rows, n_columns), dtype, name="c")
    return _kernel(a, b, c, topi.add(topi.nn.batch_matmul(a, b, transpose_b=False), c))


def softmax(*shape: int) -> tvm.IRModule:
    """Return a softmax over the last axis."""
    x = te.placeholder(shape, "float32", name="x")
    return _kernel(x, topi.nn.softmax(x))


def total(*shape: int) -> tvm.IRModule:
    """Return the square root of the sum over the last axis."""
    x = te.placeholder(shape, "float32", name="x")
    return _kernel(x, topi.sqrt(topi.sum(topi.abs(x), axis=-1)))


def ranks(n_rows: int, n: int, part: int) -> tvm.IRModule:
    """Return the ranks of elements in their parts of rows, by which a GPU sorts."""
    keys = te.placeholder((n_rows, n), "float32", name="keys")
    return _kernel(keys, topi.cast(sorts._ranks(keys, part), "float32"))


def _kernel(*tensors: te.Tensor) -> tvm.IRModule:
    return tvm.IRModule({"main": te.create_prim_func([*tensors])})


def in_sequence(module: tvm.IRModule) -> tvm.IRModule:
    """Return a scheduled kernel whose threads run one after the other."""
    text = re.sub(_THREADS, r"T.serial(\1)", module.script())
    text = re.sub(r"T\.func_attr\(.*\)", "T.func_attr({})", text)
    text = re.sub(r'scope="(shared|local)[^"]*"', 'scope="global"', text)
    return tvm.IRModule({"main": tvm.script.from_source(text)["main"]})


def run(module: tvm.IRModule) -> Array:
    """Return the output of a kernel, which is its last argument."""
    *inputs, _ = (draw(*map(int, each.shape)) for each in module["main"].params)
    (output,) = run_kernel(module, *inputs)
    return output


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(lambda: product(8, 1, 8), id="one-term"),
        pytest.param(lambda: product(8, 8, 8), id="product"),
        pytest.param(lambda: product(1, 64, 8), id="vector"),
        pytest.param(lambda: softmax(3, 5, 40), id="softmax"),
        pytest.param(lambda: total(4, 7, 1), id="sum-of-one"),
        pytest.param(lambda: ranks(3, 40, 20), id="ranks"),
    ],
)
def test_default_schedules_compute_what_their_kernels_do(
    module: object, target: tvm.target.Target
) -> None:
    """A residual of products over one term was added twice: TVM inlined it into both stores."""
    kernel: tvm.IRModule = module()  # type: ignore[operator]
    scheduled = schedule_by_default(kernel, target)

    assert "threadIdx.x" in scheduled.script()
    np.testing.assert_allclose(run(in_sequence(scheduled)), run(kernel), rtol=1e-5, atol=1e-5)


def test_other_reductions_stay_as_they_are() -> None:
    """Only those over one element are stores."""
    several, one = (product(8, n_terms, 8)["main"] for n_terms in (8, 1))

    assert defaults.store_single_terms(several).same_as(several)
    assert "T.init()" not in defaults.store_single_terms(one).script()


def test_products_on_tensor_cores_request_their_shared_memory(target: tvm.target.Target) -> None:
    """They have 72 KB of dynamic memory: more than the static limit, less than an H100 has."""
    scheduled = schedule_by_default(product(128, 768, 768, "float16"), target)
    old = tvm.target.Target({**target.export(), "arch": "sm_75"})

    assert "wmma" in scheduled.script()
    assert block_limits.are_kept(scheduled, target)
    assert not block_limits.are_kept(scheduled, old)


def test_blocks_fit_the_device(target: tvm.target.Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule with too many threads is left for the next; without one, the kernel is refused."""
    kernel = softmax(3, 5, 2048)
    wide = schedule_by_default(kernel, target)
    small = tvm.target.Target({**target.export(), "max_threads_per_block": 64})
    assert block_limits.are_kept(wide, target)
    assert not block_limits.are_kept(wide, small)

    monkeypatch.setattr(defaults, "_scheduled", lambda *_: iter([wide]))
    with pytest.raises(WorkError, match="more threads or shared memory than the GPU has"):
        schedule_by_default(kernel, small)
