"""Products of Einsum agree with NumPy, and those of two matrices are operators of Relax."""

import warnings

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.tuner.engines.relax.conftest import draw
from tests.tuner.engines.relax.networks import run_network
from tests.tuner.networks import models

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tvm import relax

    from tuner.engines.relax.frontend.onnx_graph import import_graph

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore:::tvm")]

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


def model_of(equation: str) -> tuple[onnx.ModelProto, dict[str, tuple[int, ...]]]:
    """Return a model of one Einsum, and the shapes of its inputs."""
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    shapes = {
        f"x{number}": tuple(_SIZES[label] for label in term.replace("...", "h"))
        for number, term in enumerate(terms)
    }
    arrays = [np.zeros(shape, "float32") for shape in shapes.values()]
    shape = np.einsum(equation, *arrays).shape
    return models.model(
        [helper.make_node("Einsum", list(shapes), ["y"], equation=equation)], shapes, {"y": shape}
    ), shapes


@pytest.mark.parametrize(("equation", "is_product"), EQUATIONS)
def test_einsum_agrees_and_products_are_operators(equation: str, is_product: bool) -> None:
    """Other equations are kernels that TVM writes."""
    model, shapes = model_of(equation)
    arrays = [draw(*shape, seed=seed) for seed, shape in enumerate(shapes.values())]

    module = import_graph(model)
    script = str(module)
    lowered = relax.get_pipeline("zero")(module)
    (actual,) = run_network(lowered, *arrays)

    assert ("matmul" in script) == is_product
    np.testing.assert_allclose(actual, np.einsum(equation, *arrays), rtol=1e-4, atol=1e-4)


def test_sizes_that_differ_are_not_a_product() -> None:
    """An axis of one element is repeated; a matrix product has no such axes."""
    model = models.model(
        [helper.make_node("Einsum", ["a", "b"], ["y"], equation="bij,bjd->bid")],
        {"a": (1, 4, 5), "b": (2, 5, 6)},
        {"y": None},
    )

    assert "matmul" not in str(import_graph(model))
