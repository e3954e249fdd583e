"""A library refuses an index or divisor of its caller, and names the input."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tuner
from tests.tuner.networks.models import Array
from tuner.errors import RequestError
from tuner.library.buckets import BucketedDimension, Buckets
from tuner.library.limits import InputLimit
from tuner.library.loading import BucketedLibrary, DeviceLibrary
from tuner.library.manifest import Program
from tuner.library.wrapper import NamedLibrary

_INT, _FLOAT = TensorProto.INT64, TensorProto.FLOAT


class Doubling(NamedLibrary):
    """A library of one program that returns its input twice."""

    def __init__(self) -> None:
        self.inputs = {"x": ((4,), "int64")}
        self.outputs = ("y",)

    def run_arrays(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Run it."""
        return {"y": arrays["x"] * 2}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> DeviceLibrary:
    """A network with an index, places of a scatter and a divisor, built without records."""
    folder = tmp_path_factory.mktemp("limits")
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "index"], ["rows"]),
            helper.make_node("ScatterND", ["rows", "places", "new"], ["y"]),
            helper.make_node("Div", ["places", "divisor"], ["z"]),
        ],
        "limits",
        [
            helper.make_tensor_value_info("index", _INT, [2]),
            helper.make_tensor_value_info("places", _INT, [1, 2]),
            helper.make_tensor_value_info("divisor", _INT, [1, 2]),
        ],
        [
            helper.make_tensor_value_info("y", _FLOAT, [2, 8]),
            helper.make_tensor_value_info("z", _INT, [1, 2]),
        ],
        [
            numpy_helper.from_array(np.zeros((4, 8), np.float32), "table"),
            numpy_helper.from_array(np.ones(1, np.float32), "new"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    tuner.build(str(path), folder / "model.lib", data_dir=folder)
    return tuner.load(folder / "model.lib")


_GIVEN = {
    "index": np.array([0, -4]),
    "places": np.array([[1, -8]]),
    "divisor": np.array([[2, -1]]),
}


@pytest.mark.tvm
@pytest.mark.filterwarnings("ignore:::tvm")
@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("index", [0, 4], "'index' has the index 4, but Gather takes indices from -4 to 3"),
        ("index", [-5, 0], "'index' has the index -5"),
        ("index", [0, 10**12], "'index' has the index 1000000000000"),
        ("places", [[2, 0]], "'places' has the index 2, but ScatterND takes indices from -2 to 1"),
        ("places", [[0, -9]], "'places' has the index -9"),
        ("divisor", [[1, 0]], "'divisor' has a 0, by which Div divides"),
    ],
)
def test_an_input_beyond_its_limit_is_refused(
    library: DeviceLibrary, name: str, values: list[int], message: str
) -> None:
    """Inputs at both ends are served before and after."""
    before = library(_GIVEN)

    with pytest.raises(ValueError, match=message):
        library({**_GIVEN, name: np.array(values)})

    np.testing.assert_array_equal(library(_GIVEN)["y"], before["y"])


@pytest.mark.tvm
def test_a_library_of_a_cpu_takes_no_arrays_of_a_gpu(library: DeviceLibrary) -> None:
    """The message says what it takes."""
    with pytest.raises(RequestError, match="runs on a CPU: call it with arrays of NumPy"):
        library.run_on_device(_GIVEN)


def bucketed(**limits: tuple[InputLimit, ...]) -> BucketedLibrary:
    """Return a library of buckets of one dimension, whose programs have limits: n4 is that of 4."""
    sizes = {name: int(name.removeprefix("n")) for name in limits}
    dimension = BucketedDimension("n", (*sizes.values(),), {"x": (0,)}, {"y": (0,)})
    programs = tuple(
        Program(name, "", {"x": ((size,), "int64")}, (), {}, limits=limits[name])
        for name, size in sizes.items()
    )
    return BucketedLibrary(Doubling(), Buckets((dimension,), {}), programs)


def test_padding_is_not_what_a_caller_passed() -> None:
    """A bucket pads a divisor with 0; a 0 of the caller is refused."""
    library = bucketed(n4=(InputLimit("x", "Div"),))

    np.testing.assert_array_equal(library(x=np.array([1, 2]))["y"], [2, 4])
    with pytest.raises(ValueError, match="'x' has a 0"):
        library(x=np.array([1, 0]))


@pytest.mark.parametrize(
    ("length", "size", "allowed"),
    [
        (lambda n: n, 3, (-3, 2)),
        (lambda n: n, 5, (-5, 4)),
        (lambda n: n, 8, (-8, 7)),
        (lambda n: n + 7, 3, (-10, 9)),
        (lambda n: 3 * n, 6, (-18, 17)),
        (lambda _: 100, 3, (-100, 99)),
        (lambda n: -(-n // 2), 3, (-2, 1)),
    ],
)
def test_an_index_has_the_limit_of_the_size_of_the_call(
    length: Callable[[int], int], size: int, allowed: tuple[int, int]
) -> None:
    """An index beyond it would read the padding."""
    named = {f"n{n}": (InputLimit("x", "Gather", -length(n), length(n) - 1),) for n in (4, 8, 16)}
    library = bucketed(**named)

    for place, beyond in zip(allowed, (-1, 1), strict=True):
        library(x=np.full(size, place))
        with pytest.raises(ValueError, match=f"takes indices from {allowed[0]} to {allowed[1]}"):
            library(x=np.full(size, place + beyond))


def test_a_square_of_the_size_refuses_no_index_of_its_own() -> None:
    """Two programs do not tell a product from a sum."""
    named = {f"n{n}": (InputLimit("x", "MaxUnpool", 0, n * n - 1),) for n in (4, 8)}

    for size in range(1, 9):
        bucketed(**named)(x=np.full(size, size * size - 1))
