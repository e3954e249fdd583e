"""A product and the norm that follows are one subgraph on GPUs."""

from collections.abc import Callable

import pytest
import tvm
from tvm import relax

from tests.tuner.engines.relax.conftest import draw
from tests.tuner.engines.relax.networks import relax_module, run_network
from tests.tuner.networks.models import difference
from tuner.engines.relax.graph.passes.attention import REGION, outline_attention

Emit = Callable[[relax.Expr], relax.Var]
_WIDTH = 32


def _constant(*shape: int, seed: int = 0) -> relax.Expr:
    return relax.const(draw(*shape, seed=seed))


def _product(emit: Emit, rows: relax.Expr, seed: int) -> relax.Var:
    product = emit(relax.op.matmul(rows, _constant(_WIDTH, _WIDTH, seed=seed)))
    return emit(relax.op.add(_constant(1, _WIDTH, seed=seed), product))


def _layer_norm(emit: Emit, rows: relax.Expr, axis: int = -1) -> relax.Var:
    n = int(rows.ty.shape[axis])
    return emit(relax.op.nn.layer_norm(rows, _constant(n), _constant(n, seed=1), [axis]))


def _post_norm(emit: Emit, data: relax.Var) -> list[relax.Var]:
    """Sums are read by their norms alone."""
    for seed in (1, 2):
        data = _layer_norm(emit, emit(relax.op.add(data, _product(emit, data, seed))))
    return [emit(relax.op.nn.relu(data))]


def _pre_norm(emit: Emit, data: relax.Var) -> list[relax.Var]:
    """Sums are the residuals of the layers that follow."""
    for seed in (1, 2):
        normed = emit(relax.op.nn.rms_norm(data, _constant(_WIDTH), [-1]))
        data = emit(relax.op.add(_product(emit, normed, seed), data))
    return [_layer_norm(emit, data), emit(relax.op.nn.relu(data))]


def _two_norms(emit: Emit, data: relax.Var) -> list[relax.Var]:
    """The second norm reads what the first one has."""
    product = _product(emit, data, 1)
    return [_layer_norm(emit, product), emit(relax.op.nn.rms_norm(product, _constant(32), [1]))]


def _two_products(emit: Emit, data: relax.Var) -> list[relax.Var]:
    """Two products that meet are one kernel, and the norm of their sum another."""
    total = emit(relax.op.add(_product(emit, data, 1), _product(emit, data, 2)))
    return [_layer_norm(emit, total)]


def _read_before(emit: Emit, data: relax.Var) -> list[relax.Var]:
    """The norm waits for what reads its operand."""
    product = _product(emit, data, 1)
    scale = emit(relax.op.mean(product, [0]))
    return [emit(relax.op.nn.layer_norm(product, scale, _constant(_WIDTH), [-1]))]


def _of_columns(emit: Emit, data: relax.Var) -> list[relax.Var]:
    """Rows of the sums are not what is normalised."""
    return [_layer_norm(emit, _product(emit, data, 1), 0)]


def _of_two_readers(emit: Emit, data: relax.Var) -> list[relax.Var]:
    """A function of sums that something else reads is computed with the norm of it."""
    product = _product(emit, data, 1)
    gated = emit(relax.op.multiply(product, emit(relax.op.sigmoid(product))))
    return [_layer_norm(emit, gated), emit(relax.op.nn.relu(product))]


def _converted(emit: Emit, data: relax.Var) -> list[relax.Var]:
    """A norm of half precision is computed in float32, and its operand is the next residual."""
    product = emit(relax.op.astype(_product(emit, data, 1), "float16"))
    wide = emit(relax.op.astype(product, "float32"))
    normed = emit(relax.op.nn.rms_norm(wide, _constant(_WIDTH), [-1]))
    return [emit(relax.op.astype(normed, "float16")), emit(relax.op.nn.relu(product))]


_NETWORKS: dict[str, tuple[Callable[[Emit, relax.Var], list[relax.Var]], list[str]]] = {
    "post": (_post_norm, ["matmul_add_add_layer_norm", "matmul_add_add_layer_norm_relu"]),
    "pre": (_pre_norm, ["matmul_add_add_layer_norm", "matmul_add_add_rms_norm"]),
    "norms": (_two_norms, ["matmul_add_layer_norm"]),
    "products": (_two_products, ["matmul_add_matmul_add_add"]),
    "early": (_read_before, []),
    "columns": (_of_columns, []),
    "converted": (_converted, ["matmul_add_cast_cast_rms_norm_cast"]),
    "readers": (_of_two_readers, ["sigmoid_multiply_layer_norm"]),
}


def _module(network: Callable[[Emit, relax.Var], list[relax.Var]], n_rows: int) -> tvm.IRModule:
    return relax_module(lambda emit, data: relax.Tuple(network(emit, data)), (n_rows, _WIDTH))


@pytest.mark.parametrize("name", _NETWORKS)
def test_norms_are_part_of_the_kernel_of_a_product(name: str) -> None:
    """Bias and residual are, too; a sum that is read later is an output beside the norm."""
    network, expected = _NETWORKS[name]
    module = _module(network, 5)

    outlined, results = outline_attention(module, lambda *_: True, is_for_gpu=True)

    names = [each.rstrip("0123456789") for each, calls in results.items() for _ in calls]
    assert sorted(names) == expected
    regions = [each for each in outlined.functions.values() if REGION in (each.attrs or {})]
    assert len(regions) == len(results)
    outputs = (run_network(each, draw(5, _WIDTH)) for each in (outlined, module))
    for actual, reference in zip(*outputs, strict=True):
        assert difference(actual, reference) < 1e-5


def test_norms_of_many_sums_are_kernels_of_their_own() -> None:
    """Products of that size fill a GPU without parts of sums."""
    module = _module(_post_norm, 1 << 15)

    _, results = outline_attention(module, lambda *_: True, is_for_gpu=True)

    assert not results
