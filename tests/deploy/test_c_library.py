"""Libraries run without Python as they run in it."""

import ctypes
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import tuner
from deploy.python.tuner_runtime.core import Tensor, described_array
from tests.deploy.c_library import Array, Interface, spec_of
from tests.deploy.small_network import EXAMPLES, MASKS, inputs_of, needs_cmake
from tests.tuner.networks.models import difference, model, run
from tuner.errors import RequestError
from tuner.library import processors

_FEATURES = processors._FLAGS.get(processors.this_machine(), {})
# Where the package of Node.js has them on Debian, or beside the program.
_NODE_HEADERS = Path(shutil.which("node") or "/usr/bin/node").resolve().parents[1] / "include/node"
pytestmark = [
    pytest.mark.tvm,
    pytest.mark.filterwarnings("ignore:::tvm"),
    needs_cmake,
]


def _needs(name: str, is_there: bool) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not is_there, reason=f"needs {name}")


@pytest.fixture(scope="module")
def interface(built: Path) -> Interface:
    """The functions."""
    return Interface(built / "libtuner.so")


@pytest.fixture
def library(built: Path, interface: Interface) -> Iterator[Any]:
    """The library, opened."""
    opened = interface.opened(built / "network.lib")
    yield opened
    interface.close(opened)


def test_outputs_are_those_of_onnx_runtime(built: Path, interface: Interface, library: Any) -> None:
    """Every run has its own inputs, and outputs keep their names, shapes and order."""
    for seed in (0, 1):
        expected = run((built / "network.onnx").read_bytes(), inputs_of(seed))

        outputs = interface(library, inputs_of(seed))

        assert list(outputs) == ["y", "rows"]
        for actual, reference in zip(outputs.values(), expected, strict=True):
            assert actual.shape == reference.shape
            assert difference(actual, reference) < 1e-6


def test_inputs_are_described(interface: Interface, library: Any) -> None:
    """Their order is that of the model."""
    counts = (interface.n_programs, interface.n_inputs, interface.n_outputs)
    assert tuple(count(library) for count in counts) == (1, 6, 2)
    for number, (name, array) in enumerate(inputs_of(0).items()):
        tensor = interface.input(library, 0, number).contents
        described = tensor.name.decode(), tensor.dtype.decode(), tensor.n_bytes, tensor.data
        assert described == (name, str(array.dtype), array.nbytes, None)
        assert tuple(tensor.shape[: tensor.rank]) == array.shape
    assert not interface.input(library, 0, 6)
    assert not interface.input(library, 1, 0)
    assert not interface.output(library, 2)
    output = interface.output(library, 0).contents
    assert (output.name, output.n_bytes, output.data) == (b"y", 32, None)
    assert spec_of(output) == ((2, 4), "float32")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": b"b"}, "input 'a' is number 0, got 'b' there"),
        ({"dtype": b"float16"}, "input 'a' must have dtype float32, got float16"),
        ({"dtype": None}, "input 'a' must have dtype float32, got NULL"),
        ({"n_bytes": 60}, "input 'a' must have 64 bytes, got 60"),
        ({"data": None}, "input 'a' has no data"),
        ({"rank": 1}, r"shapes a \(2,\), .*scale \(\), .*; the library has a \(2, 8\), "),
    ],
)
def test_an_input_that_does_not_fit_is_refused(
    interface: Interface, library: Any, changes: dict[str, Any], message: str
) -> None:
    """The message names it, no outputs are left, and the library still serves."""
    given = inputs_of(0)
    wrong = [described_array(name, array) for name, array in given.items()]
    for field, value in changes.items():
        setattr(wrong[0], field, value)

    with pytest.raises(RuntimeError, match=message):
        interface.run_tensors(library, wrong)

    assert interface.output(library, 0).contents.data is None
    assert interface(library, given)


def test_the_number_of_inputs_is_checked(interface: Interface, library: Any) -> None:
    """Memory behind the inputs is not read."""
    with pytest.raises(RuntimeError, match="the library takes 6 inputs, got 0"):
        interface(library, {})


@pytest.mark.parametrize("index", [[0, 5], [-6, 0]])
def test_an_index_beyond_its_limit_is_refused(
    interface: Interface, library: Any, index: list[int]
) -> None:
    """The limits are those of the manifest."""
    with pytest.raises(RuntimeError, match=r"'index' has the index .*Gather takes .* -5 to 4"):
        interface(library, {**inputs_of(0), "index": np.array(index)})


@pytest.fixture(scope="module")
def onnx_runtime() -> Path:
    """ONNX Runtime's library for C, which its package has."""
    (file,) = Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*")
    return file


def test_outputs_are_copied_to_memory_of_the_caller(interface: Interface, library: Any) -> None:
    """An output that is too small is refused before the run."""
    given = [described_array(*each) for each in inputs_of(0).items()]
    arrays = [np.zeros((2, 4), np.float32), np.zeros((2, 3), np.float32)]
    memory = (Tensor * 2)(*map(described_array, ("y", "rows"), arrays))
    inputs = (Tensor * 6)(*given)

    assert not interface.run_into(library, inputs, 6, memory, 2)

    expected = interface.run_tensors(library, given)
    np.testing.assert_array_equal(arrays[0], expected["y"])
    np.testing.assert_array_equal(arrays[1], expected["rows"])
    memory[1].n_bytes = 20
    assert interface.run_into(library, inputs, 6, memory, 2) == 1
    assert b"output 'rows' has 24 bytes, but memory of 20" in interface.error()


def _rows(size: int) -> dict[str, Array]:
    table = np.random.default_rng(size).random((size, 3), dtype=np.float32)
    masks = {name: np.zeros((size, 1), dtype) for name, dtype in MASKS.items()}
    return {"table": table, "index": np.arange(size)[::-1].copy(), **masks}


def test_inputs_are_padded_to_buckets(bucketed: Path, interface: Interface) -> None:
    """Sizes follow each other in any order; outputs have the size of the inputs."""
    library = interface.opened(bucketed)
    for size in (4, 3, 1, 2, 3):
        given = _rows(size)

        specs = interface.described(library, [described_array(*each) for each in given.items()])
        outputs = interface(library, given)

        assert specs["y"] == ((size, 3), "float32")
        np.testing.assert_array_equal(outputs["y"], -given["table"][given["index"]])
    interface.close(library)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (_rows(5), "dimension 'n' is 5, beyond the largest bucket; the buckets are 2, 4"),
        (
            {"index": np.array([1, 0])},
            "inputs 'table' and 'index' share the dimension 'n', but have 3 and 2",
        ),
        ({"table": np.array(1, np.float32)}, r"input 'table' has too few dimensions: \(\)"),
        ({"index": np.array([0, 3, 1])}, "index 3, but Gather takes indices from -3 to 2"),
        ({"index": np.array([0, -4, 1])}, "index -4, but Gather takes indices from -3 to 2"),
    ],
)
def test_inputs_that_fit_no_bucket_are_refused(
    bucketed: Path, interface: Interface, changes: dict[str, Array], message: str
) -> None:
    """Indices that would read the padding are beyond their limit."""
    library = interface.opened(bucketed)

    with pytest.raises(RuntimeError, match=message):
        interface(library, {**_rows(3), **changes})

    interface.close(library)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.shape.__setitem__(0, -1), r"the shape \(-1, 3\), which is impossible"),
        (lambda table: setattr(table, "shape", None), "input 'table' has no shape"),
    ],
)
def test_impossible_shapes_are_refused(
    bucketed: Path, interface: Interface, change: Callable[[Tensor], None], message: str
) -> None:
    """Inputs have all sizes, and none is negative as those that the data of outputs decide."""
    library = interface.opened(bucketed)
    table, *others = (described_array(*each) for each in _rows(3).items())
    change(table)

    with pytest.raises(RuntimeError, match=message):
        interface.described(library, [table, *others])

    interface.close(library)


def test_items_of_half_a_byte_are_not_padded(
    bucketed: Path, interface: Interface, tmp_path: Path
) -> None:
    """They have no address."""

    def change(raw: dict[str, Any]) -> None:
        raw["buckets"]["padding"] = {"int8": 1.0}
        for program in raw["programs"]:
            program["inputs"]["int8"][1] = "int4"

    library = interface.opened(_changed(bucketed, tmp_path, change))
    given = _rows(3)
    tensors = {name: described_array(name, array) for name, array in given.items()}
    tensors["int8"].dtype, tensors["int8"].n_bytes = b"int4", 2

    with pytest.raises(RuntimeError, match="tensors of int4 cannot be padded"):
        interface.run_tensors(library, [*tensors.values()])

    interface.close(library)


def test_sums_below_zero_are_refused(bucketed: Path, interface: Interface, tmp_path: Path) -> None:
    """The dimensions of the input are not those of the sum then."""

    def change(raw: dict[str, Any]) -> None:
        (dimension,) = raw["buckets"]["dimensions"]
        dimension["min_size"] = 0
        del dimension["inputs"]["float32"]
        sums = [{"parts": ["n"], "offset": -1, "inputs": {"float32": [0]}}]
        raw["buckets"]["sums"] = sums
        for program in raw["programs"]:
            program["inputs"]["float32"][0][0] -= 1

    library = interface.opened(_changed(bucketed, tmp_path, change))

    with pytest.raises(RuntimeError, match="a sum of dimensions is -1"):
        interface(library, {**_rows(0), "float32": np.array(1, np.float32)})

    interface.close(library)


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 1e-3, -10000.0, float("-inf")])
def test_padding_has_the_value_of_the_mask(
    bucketed: Path, interface: Interface, tmp_path: Path, value: float
) -> None:
    """It is rounded as NumPy does it."""

    def change(raw: dict[str, Any]) -> None:
        raw["buckets"]["dimensions"][0]["outputs"] = {}  # nothing is cut
        raw["buckets"]["padding"] = dict.fromkeys(MASKS, value)

    library = interface.opened(_changed(bucketed, tmp_path, change))
    outputs = interface(library, _rows(3))
    interface.close(library)

    for name, dtype in MASKS.items():
        assert outputs[f"{name}_out"].dtype == dtype
        if dtype.startswith("float") or abs(value) == 1:
            expected = np.full((1, 2), value, dtype)
            np.testing.assert_array_equal(outputs[f"{name}_out"][3:], expected)


def test_operators_after_the_program_run_in_onnx_runtime(
    tailed: Path, interface: Interface, onnx_runtime: Path
) -> None:
    """Sizes that the data decide are -1 before the run."""
    ctypes.CDLL(str(onnx_runtime))
    library = interface.opened(tailed)
    assert spec_of(interface.output(library, 0).contents) == ((-1, 4), "float32")

    outputs = interface(library, inputs_of(0))

    assert list(outputs) == ["z", "y"]
    np.testing.assert_array_equal(outputs["z"], -outputs["y"])
    interface.close(library)


Change = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw.update(version=4), "has manifest version 4, and this program reads"),
        (lambda raw: raw.update(target='{"kind":"vulkan"}'), "is neither for a CPU nor for an"),
        (
            lambda raw: raw.update(tail={"returned": raw["outputs"]}),
            "damaged: the tail '' is not one of its files",
        ),
        (lambda raw: raw["programs"][0]["outputs"].pop(), "manifest.json is damaged: "),
        (
            lambda raw: raw.update(engine="tuner.engines.relay.worker"),
            "was built by tuner.engines.relay.worker, which alone can load it",
        ),
        (lambda raw: raw.update(machine="pdp11"), "it is code for pdp11, this machine is"),
        (lambda raw: raw.update(features=["x", "y"]), "it needs x, y, which this CPU lacks"),
        (lambda raw: raw["files"].update({"lib.so": "0" * 64}), "lib.so was altered"),
        (lambda raw: raw["files"].update(other=""), "incomplete: other is missing"),
        (lambda raw: raw.pop("programs"), "manifest.json is damaged: it has no programs"),
        (lambda raw: raw["files"].pop("lib.so"), "damaged: lib.so is not one of its files"),
        (lambda raw: raw["files"].pop("weights.bin"), "weights.bin is not one of its files"),
        (lambda raw: raw["files"].update({"../x": ""}), "the file '../x' is outside of the folder"),
        (lambda raw: raw.update(target="[" * 200000), "damaged: it is nested too deeply"),
        (lambda raw: raw["weights"][0].update(offset=1 << 40), "damaged: a weight lies beyond"),
        (lambda raw: raw["weights"][0].update(offset=(1 << 63) - 64), "a weight lies beyond"),
        (lambda raw: raw["weights"][0].update(offset=4), "damaged: a weight has the offset 4"),
        (lambda raw: raw["weights"][0].update(n_bytes=4), "another size than its shape"),
        (lambda raw: raw["weights"][0].update(shape=[1 << 40] * 2), "shape .* is impossible"),
        (lambda raw: _input(raw).__setitem__(0, [-1]), r"the shape \(-1,\) is impossible"),
        (
            lambda raw: raw["programs"].append({**raw["programs"][0], "inputs": {}}),
            "different inputs",
        ),
        (
            lambda raw: _limit(raw).update(part=[[0, 2, 0]]),
            "limit of the input 'index' does not fit",
        ),
        (lambda raw: _limit(raw).update(part=[[-9, 2, 1]]), "limit of the input 'index' does not"),
        (
            lambda raw: _limit(raw).update(part=[[0, 2]]),
            "limit of the input 'index' does not fit it",
        ),
        (lambda raw: _limit(raw).update(part=[[0, 1, 1]] * 2), "input 'index' does not fit it"),
        (lambda raw: _limit(raw).update(input="a"), "limit of the input 'a' does not fit it"),
        (lambda raw: _limit(raw).update(input="z"), "limit of the input 'z' does not fit it"),
        (lambda raw: raw["programs"][0].update(entry="z"), "damaged: lib.so has no program z"),
        (lambda raw: raw.update(device=None), "manifest.json is damaged: "),
        (lambda raw: raw["programs"][0].update(weights=[99]), "manifest.json is damaged: "),
        (lambda raw: raw.update(features=7), "manifest.json is damaged: "),
    ],
)
def test_a_library_that_cannot_run_is_refused(
    built: Path, interface: Interface, tmp_path: Path, change: Change, message: str
) -> None:
    """The message says why."""
    folder = _changed(built / "network.lib", tmp_path, change)

    with pytest.raises(RuntimeError, match=message):
        interface.opened(folder)


def _limit(raw: dict[str, Any]) -> dict[str, Any]:
    (limit,) = raw["programs"][0]["limits"]
    assert isinstance(limit, dict)
    return limit


def _input(raw: dict[str, Any]) -> list[Any]:
    spec = raw["programs"][0]["inputs"]["a"]
    assert isinstance(spec, list)
    return spec


def _changed(library: Path, tmp_path: Path, change: Change) -> Path:
    folder = tmp_path / "changed.lib"
    shutil.copytree(library, folder)
    raw = json.loads((folder / "manifest.json").read_text())
    change(raw)
    (folder / "manifest.json").write_text(json.dumps(raw))
    return folder


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"a": "\\"]]", "b": ' + b"[" * 200000, None]
)
def test_a_folder_without_a_manifest_is_refused(
    interface: Interface, tmp_path: Path, content: bytes | None
) -> None:
    """The message names the file."""
    if content is not None:
        (tmp_path / "manifest.json").write_bytes(content)

    with pytest.raises(RuntimeError, match=r"manifest\.json"):
        interface.opened(tmp_path)


@pytest.mark.parametrize("feature", _FEATURES)
def test_features_of_the_cpu_are_those_that_python_finds(
    built: Path, interface: Interface, tmp_path: Path, feature: str
) -> None:
    """Names of LLVM and of Linux are matched in the same way."""
    (tmp_path / "manifest.json").write_text(
        json.dumps(
            json.loads((built / "network.lib" / "manifest.json").read_text())
            | {"features": [feature]}
        )
    )
    reason = "it needs" if processors.refusal("", [feature]) else "is incomplete"

    with pytest.raises(RuntimeError, match=reason):
        interface.opened(tmp_path)


def test_files_of_every_length_have_their_checksum(
    built: Path, interface: Interface, tmp_path: Path
) -> None:
    """SHA-256 pads them to blocks of 64 bytes."""
    contents = {f"file{n}": os.urandom(n) for n in (0, 1, 55, 56, 63, 64, 119, 120, 4096)}
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    folder = _changed(built / "network.lib", tmp_path, lambda raw: raw["files"].update(sums))
    for name, content in contents.items():
        (folder / name).write_bytes(content)

    interface.close(interface.opened(folder))


@pytest.mark.parametrize("name", ["lib.so", "weights.bin"])
def test_the_tuner_refuses_files_without_a_checksum(built: Path, tmp_path: Path, name: str) -> None:
    """It would load whatever they have become."""
    folder = _changed(built / "network.lib", tmp_path, lambda raw: raw["files"].pop(name))

    with pytest.raises(RequestError, match=f"damaged: {name} is not one of its files"):
        tuner.load(folder)


def test_a_file_that_is_none_is_refused(built: Path, interface: Interface, tmp_path: Path) -> None:
    """A pipe would block, as nothing is written into it."""
    folder = _changed(built / "network.lib", tmp_path, lambda raw: raw)
    (folder / "weights.bin").unlink()
    os.mkfifo(folder / "weights.bin")

    with pytest.raises(RuntimeError, match=r"weights\.bin: it is not a file"):
        interface.opened(folder)


def test_no_file_stays_open(built: Path, interface: Interface) -> None:
    """The weights of an opened library are in memory."""
    descriptors = Path("/proc/self/fd")
    n_open = len([*descriptors.iterdir()])

    opened = interface.opened(built / "network.lib")

    assert len([*descriptors.iterdir()]) == n_open
    interface.close(opened)


def test_a_library_that_was_built_again_is_the_new_one(
    built: Path, interface: Interface, tmp_path: Path
) -> None:
    """The dynamic linker would return the code that the same path had before."""
    folder = tmp_path / "network.lib"
    shutil.copytree(built / "network.lib", folder)
    old, same = (interface.opened(f"{folder}{end}") for end in ("", "/"))
    node = helper.make_node("Neg", ["data"], ["y"])
    onnx.save(model([node], {"data": (3,)}, {"y": (3,)}), tmp_path / "network.onnx")
    tuner.build(str(tmp_path / "network.onnx"), folder, data_dir=built / "data")

    new = interface.opened(folder)

    data = np.array([-1.0, 0.0, 2.0], np.float32)
    assert interface(new, {"data": data})["y"].tolist() == [1.0, 0.0, -2.0]
    assert interface(old, inputs_of(0))["y"].shape == (2, 4)
    for library in (new, old, same):
        interface.close(library)


def _in_c(built: Path) -> list[str]:
    return [str(built / "run_library")]


def _in_cpp(built: Path) -> list[str]:
    return [str(built / "run_in_threads"), "3", "50"]


def _in_go(built: Path) -> list[str]:
    program = built / "run_library_in_go"
    options = {
        "CGO_CFLAGS": f"-I{EXAMPLES.parent}",
        "CGO_LDFLAGS": f"-L{built} -Wl,-rpath,{built}",
        "GOCACHE": str(built / "go"),
    }
    command = ["go", "build", "-o", str(program), str(EXAMPLES / "run_library.go")]
    subprocess.run(command, check=True, env=os.environ | options)
    return [str(program)]


def _in_rust(built: Path) -> list[str]:
    program = built / "run_library_in_rust"
    link = ["-L", str(built), "-l", "tuner", "-C", f"link-arg=-Wl,-rpath,{built}"]
    source = str(EXAMPLES / "run_library.rs")
    subprocess.run(["rustc", source, *link, "-o", str(program)], check=True)
    return [str(program)]


def _in_javascript(built: Path) -> list[str]:
    addon = built / "tuner.node"
    options = ["-I", str(EXAMPLES.parent), "-I", str(_NODE_HEADERS), "-L", str(built)]
    command = ["cc", "-Wall", "-Werror", "-shared", "-fPIC", *options, str(EXAMPLES / "addon.c")]
    library = ["-o", str(addon), "-ltuner", f"-Wl,-rpath,{built}"]
    subprocess.run([*command, *library], check=True)
    return ["node", str(EXAMPLES / "run_library.js"), str(addon)]


@pytest.mark.parametrize(
    "compiled",
    [
        _in_c,
        _in_cpp,
        pytest.param(_in_go, marks=_needs("Go", bool(shutil.which("go")))),
        pytest.param(_in_rust, marks=_needs("rustc", bool(shutil.which("rustc")))),
        pytest.param(_in_javascript, marks=_needs("Node.js", _NODE_HEADERS.exists())),
    ],
)
def test_the_examples_agree_with_onnx_runtime(
    built: Path, tmp_path: Path, compiled: Callable[[Path], list[str]]
) -> None:
    """They read inputs from files and print the outputs, and end with the message of a failure."""
    command, files = compiled(built), []
    for name, array in inputs_of(1).items():
        array.tofile(tmp_path / name)
        files.append(str(tmp_path / name))

    done, failed = (
        subprocess.run([*command, *rest], check=False, capture_output=True, text=True)
        for rest in ((str(built / "network.lib"), *files), (str(built / "nothing.lib"),))
    )

    expected = run((built / "network.onnx").read_bytes(), inputs_of(1))
    heads, numbers = zip(*(line.split(": ") for line in done.stdout.splitlines()), strict=True)
    assert heads == ("y float32 2x4", "rows float32 2x3")
    for line, reference in zip(numbers, expected, strict=True):
        assert difference(np.array(line.split(), np.float32), reference.ravel()) < 1e-6
    assert (done.returncode, failed.returncode) == (0, 1)
    assert "nothing.lib/manifest.json: No such file" in failed.stderr
