"""Products of Einsum agree with NumPy, and those of two matrices are operators of Relax."""

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import helper
from tvm import relax

from tests.tuner.engines.relax.conftest import draw
from tests.tuner.engines.relax.networks import run_network
from tests.tuner.networks import models
from tuner.engines.relax.frontend.onnx_graph import import_graph

_SIZES = {"b": 2, "h": 3, "i": 4, "j": 5, "d": 6, "e": 7, "u": 1}

#: Equation, and whether it is a product of two matrices.
EQUATIONS = [
    ("ij,jd->id", True),
    ("ij,jd->di", True),
    ("ij , jd", True),
    ("ji,jd", True),
    ("bihd,bjhd->bhij", True),
    ("bhij,bjhd->bihd", True),
    ("bihd,bjhd->bjhi", True),
    ("bhid,hjd->bhij", True),
    ("id,dhe->ihe", True),
    ("bijd,bjide->bije", False),
    ("bijde,bjdh->bhie", True),
    ("ijd,djb->ib", True),
    ("ij,ij->i", False),
    ("ij,jd->i", False),
    ("ijb,jd->id", False),
    ("i,j->ij", False),
    ("iu,uj->ij", True),
    ("ji,j->i", False),
    ("b...i,bi->b...", False),
    ("ij,jd,db->ib", False),
    ("ii,ij->j", False),
    ("ijd->dj", False),
]


def model_of(equations: Sequence[str]) -> tuple[onnx.ModelProto, dict[str, tuple[int, ...]]]:
    """Return a model of an Einsum for each equation, and the shapes of its inputs."""
    nodes: list[onnx.NodeProto] = []
    inputs: dict[str, tuple[int, ...]] = {}
    outputs: dict[str, tuple[int, ...]] = {}
    for number, equation in enumerate(equations):
        terms = equation.replace(" ", "").partition("->")[0].split(",")
        shapes = {
            f"x{number}_{place}": tuple(_SIZES[label] for label in term.replace("...", "h"))
            for place, term in enumerate(terms)
        }
        inputs |= shapes
        outputs[f"y{number}"] = np.einsum(equation, *map(np.zeros, shapes.values())).shape
        nodes.append(helper.make_node("Einsum", [*shapes], [f"y{number}"], equation=equation))
    return models.model(nodes, inputs, outputs), inputs


@pytest.mark.parametrize(("equation", "is_product"), EQUATIONS)
def test_products_are_operators(equation: str, is_product: bool) -> None:
    """Other equations are kernels that TVM writes."""
    assert ("matmul" in str(import_graph(model_of([equation])[0]))) == is_product


def test_einsum_agrees() -> None:
    """Values are those of NumPy, whatever computes them."""
    equations = [equation for equation, _ in EQUATIONS]
    model, shapes = model_of(equations)
    arrays = {name: draw(*each, seed=seed) for seed, (name, each) in enumerate(shapes.items())}

    outputs = run_network(relax.get_pipeline("zero")(import_graph(model)), *arrays.values())

    for number, (equation, actual) in enumerate(zip(equations, outputs, strict=True)):
        terms = [array for name, array in arrays.items() if name.startswith(f"x{number}_")]
        expected = np.einsum(equation, *terms)
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4, err_msg=equation)


def test_sizes_that_differ_are_not_a_product() -> None:
    """An axis of one element is repeated; a matrix product has no such axes."""
    model = models.model(
        [helper.make_node("Einsum", ["a", "b"], ["y"], equation="bij,bjd->bid")],
        {"a": (1, 4, 5), "b": (2, 5, 6)},
        {"y": None},
    )

    assert "matmul" not in str(import_graph(model))
