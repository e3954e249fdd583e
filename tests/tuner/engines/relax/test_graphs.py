"""Programs of libraries for GPUs, captured and replayed on a stub driver with CUDA's rules."""

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm import te

from tests.gpu_compilers import needs_nvrtc
from tests.tuner.engines.relax import gpu_cases, networks
from tests.tuner.engines.relax.conftest import draw
from tests.tuner.engines.relax.gpu_cases import count
from tuner.engines.base import ModelFile
from tuner.engines.relax import worker
from tuner.engines.relax.codegen.cuda import nvrtc
from tuner.engines.relax.ir import workloads
from tuner.engines.relax.schedules.gpu.defaults import schedule_by_default
from tuner.engines.relax.target.targets import make_target
from tuner.errors import WorkerLost
from tuner.library.arrays import write_arrays
from tuner.networks.worker import load_model
from tuner.workers.pool import Pool

pytestmark = needs_nvrtc
Run = Callable[..., Any]
_SHAPES: dict[str, tuple[int, ...]] = {"r": (0, 8, 8), "s": (0, 64)}
_VIEWS: dict[str, tuple[int, ...]] = {
    "i": (0, 64),
    "r2": (0, 8, 8),
    "k": (3,),
    "n": (2,),
    "v": (0, 8, 8),
}


def model(folder: Path, rows: int, views: bool) -> ModelFile:
    """Write a network of three kernels; if asked, with outputs that no kernel writes."""
    nodes = [
        helper.make_node("MatMul", ["a", "w"], ["m"]),
        helper.make_node("Reshape", ["m", "shape"], ["r"]),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("Softmax", ["c"], ["s"]),
        helper.make_node("Identity", ["b"], ["i"]),
        helper.make_node("Identity", ["r"], ["r2"]),
        helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(draw(3), "k")),
        helper.make_node("Shape", ["a"], ["n"]),
        helper.make_node("Reshape", ["a", "shape"], ["v"]),
    ]
    shapes = _SHAPES | (_VIEWS if views else {})
    outputs = [
        helper.make_tensor_value_info(
            name,
            TensorProto.INT64 if name == "n" else TensorProto.FLOAT,
            [n or rows for n in shape],
        )
        for name, shape in shapes.items()
    ]
    graph = helper.make_graph(
        nodes if views else nodes[:4],
        "test",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, (rows, 64)) for name in "ab"],
        outputs,
        [
            numpy_helper.from_array(draw(64, 64), "w"),
            numpy_helper.from_array(np.array([rows, 8, 8]), "shape"),
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / f"{rows}-{views}.onnx"
    onnx.save(made, path)
    return load_model(str(path), {}, None, str(folder)).file


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Libraries for an absent GPU: ``plain`` for two numbers of rows, ``views`` for one."""
    folder = tmp_path_factory.mktemp("libraries")
    target = worker.describe_target("cuda:sm_90")
    plain = [model(folder, rows, views=False) for rows in (32, 48)]
    views = model(folder, 32, views=True)
    objects = networks.compile_objects(plain, target, folder / "objects")
    return {
        name: str(networks.link_untuned(models, target, objects, folder / name))
        for name, models in (("plain", plain), ("views", [views]))
    }


@pytest.fixture(scope="module")
def n_kernels(pool: Pool, folders: dict[str, str]) -> int:
    """Return the number of kernels of a run: a product, which may be two, a sum, a softmax."""
    return len(call(pool, "first_launches", folders["plain"], str(Path(folders["plain"]).parent)))


def call(pool: Pool, function: str, *arguments: object) -> Any:
    """Call a function of the cases in the process that sees the GPU."""
    return pool.call(gpu_cases.__name__, function, *arguments, timeout_secs=120.0)


@pytest.fixture
def run(pool: Pool, folders: dict[str, str], tmp_path: Path) -> Run:
    """Call of a function of the cases with a library, in the process that sees the GPU."""
    return lambda function, library, *arguments: call(
        pool, function, folders[library], str(tmp_path), *arguments
    )


def test_arrays_cost_a_launch_copies_and_one_wait(run: Run, n_kernels: int) -> None:
    """Nothing is allocated, and outputs that no kernel writes have their values."""
    log, outputs = run("call_with_arrays", "views")

    given = gpu_cases.arrays(seed=2)
    np.testing.assert_array_equal(outputs["output_2"], given["b"])
    np.testing.assert_array_equal(outputs["output_4"], draw(3))
    np.testing.assert_array_equal(outputs["output_5"], [32, 64])
    np.testing.assert_array_equal(outputs["output_6"], given["a"].reshape(32, 8, 8))
    assert count(log, "cudaGraphLaunch") == 1
    assert count(log, "replay") == n_kernels
    n_inputs, n_outputs, n_views = 2, 7, 5
    assert count(log, "cudaMemcpyAsync") == n_inputs + n_views + n_outputs
    assert count(log, "cudaStreamSynchronize") == 1
    assert not count(log, "launch", "cudaMalloc", "cudaMallocHost", "cudaFree", "capture")


def test_graphs_are_compared_after_the_first_run_on_its_inputs(run: Run) -> None:
    """They share its workspace, and indices in other memory may lie outside of tensors."""
    seen = run("first_run_on_a_stream", "plain")

    own, log = seen["own"], seen["log"]
    names = [words[0] for words in log]
    first = names.index("cudaGraphLaunch")
    waits = [words[2] for words in log[:first] if words[0] == "cudaStreamWaitEvent"]
    copies = [words for words in log[:first] if words[0] == "cudaMemcpyAsync"]
    assert waits[-1] == own
    assert [words[2] for words in copies] == [own, own]
    assert sorted(words[4] for words in copies) == seen["given"]
    assert {words[3] for words in log if words[0] == "cudaGraphLaunch"} == {own}
    # Later runs do not wait for them.
    assert "cudaStreamSynchronize" in names[first:]


@pytest.mark.parametrize("rows", [32, 48])
def test_replays_launch_what_plain_runs_launch(run: Run, n_kernels: int, rows: int) -> None:
    """They do, on tensors at any address, and allocate, copy and wait for nothing."""
    seen = run("compare_launches", "plain", rows)

    assert [len(run) for run in seen["each"]] == [n_kernels] * 4
    assert seen["graph"] == seen["each"]
    allowed = {"cudaGraphLaunch", "replay", "cudaEventRecord", "cuGraphExecKernelNodeSetParams_v2"}
    assert {words[0] for log in seen["logs"] for words in log} == allowed
    # All three kernels have a tensor of the caller; the second of equal calls changes none.
    changed = [count(log, "cuGraphExecKernelNodeSetParams_v2") for log in seen["logs"]]
    assert changed == [n_kernels, 0] * 4


def test_outputs_belong_to_the_caller(run: Run) -> None:
    """Memory is used again once all consumers have dropped it, and the caller may give it."""
    seen = run("give_outputs", "plain")

    first, second, kept, last = seen["addresses"]
    assert first == second == kept != last
    assert seen["mallocs"] == [0, 0, 0, 2]
    assert seen["same"]
    assert seen["written"]


def test_arrays_are_exchanged_on_streams(run: Run) -> None:
    """Producers learn the stream of the call, and other streams of consumers wait for the run."""
    seen = run("exchange", "plain")

    assert seen["streams"] == [True, True]
    assert seen["waits"] == [0, 1, 1, 0]
    assert seen["device"] == [2, 0]
    assert (seen["shape"], seen["dtype"]) == ([32, 8, 8], "float32")


def test_tensors_of_torch_are_read_at_each_call(run: Run) -> None:
    """They are exported for another stream alone, once; what cannot be used is refused."""
    seen = run("call_with_torch", "plain")

    assert seen["exports"] == [[], [], [1]]
    assert seen["used"]
    assert seen["launches"] == 1
    expected = [
        r"input 'b' must be contiguous and start at a multiple of 64 bytes",
        r"input 'b' must be contiguous and start at a multiple of 64 bytes",
        r"require gradient",
        r"input 'b' must have shape \(32, 64\) and dtype float32 .*, got \(32, 64\) and int32",
        r"input 'b' must have shape \(32, 64\) and dtype float32 .*, got \(32, 63\) and float32",
    ]
    for message, pattern in zip(seen["refusals"], expected, strict=True):
        assert re.search(pattern, message), message


def test_unusable_arrays_are_named(pool: Pool, folders: dict[str, str]) -> None:
    """The message says what is wrong with which array."""
    messages = call(pool, "refusals", folders["plain"])

    expected = [
        r"input 'b' is not on a GPU",
        r"input 'b' is cuda:1, and the library runs on cuda:0",
        r"input 'b' must be an array on the GPU, got list",
        r"input 'b' must be contiguous and start at a multiple of 64 bytes",
        r"input 'b' must be contiguous",
        r"input 'b' of shape \(32, 64\) and dtype float32 is missing",
        r"input 'a' must have shape \(32, 64\) .* or shape \(48, 64\)",
        r"unknown output 'nothing'",
        r"output 'output_0' must have shape \(32, 8, 8\) and dtype float32, got \(40, 64\)",
        r"stream must be a handle",
    ]
    assert len(messages) == len(expected)
    for message, pattern in zip(messages, expected, strict=True):
        assert re.search(pattern, message), message


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("cudaStreamBeginCapture=900", "cudaStreamBeginCapture of CUDA fails with status 900"),
        ("cudaStreamEndCapture=901", "cudaStreamEndCapture of CUDA fails with status 901"),
        ("cuLaunchKernelEx@5=2", "CUDA"),
        ("cudaGraphGetNodes=1", "cudaGraphGetNodes of CUDA fails with status 1"),
        ("cudaGraphNodeGetType=1", "cudaGraphNodeGetType of CUDA fails with status 1"),
        ("cuGraphKernelNodeGetParams_v2=1", "cuGraphKernelNodeGetParams_v2 of CUDA"),
        ("cuFuncGetParamInfo=3", "cuFuncGetParamInfo of CUDA fails with status 3"),
        ("cuFuncGetParamInfo=1", "CUDA does not tell the parameters of a kernel"),
        ("cudaGraphInstantiate=2", "cudaGraphInstantiate of CUDA fails with status 2"),
        ("cudaGraphLaunch=1", "cudaGraphLaunch of CUDA fails with status 1"),
        ("cuGraphExecKernelNodeSetParams_v2@2=1", "cuGraphExecKernelNodeSetParams_v2 of CUDA"),
    ],
)
def test_kernels_run_one_by_one_where_graphs_fail(
    run: Run, n_kernels: int, spec: str, reason: str
) -> None:
    """The reason is kept and logged once, and CUDA keeps no trace of the failure."""
    seen = run("fail", "views", spec)

    assert seen["errors"] == []
    assert seen["launched"] == [[n_kernels, 0]] * 3
    assert reason in seen["note"]
    assert seen["note"].startswith("its kernels are launched one by one: ")
    (warning,) = seen["warnings"]
    assert reason in warning
    assert (seen["capturing"], seen["last error"]) == (0, 0)
    assert seen["is right"]


@pytest.mark.parametrize(
    "spec",
    [
        *("cuStreamUpdateCaptureDependencies_v2@3=1", "cuStreamGetCaptureInfo_v3@1=801"),
        *("cudaEventCreateWithFlags=2", "cudaEventElapsedTime=1", "cudaGraphLaunch@2=1"),
    ],
)
def test_kernels_run_one_after_the_other_where_branches_fail(
    run: Run, n_kernels: int, spec: str
) -> None:
    """The program stays one graph launch, with the same outputs."""
    seen = run("fail", "views", spec)

    assert seen["errors"] == seen["warnings"] == []
    assert seen["launched"] == [[n_kernels, 0], [0, n_kernels], [0, n_kernels]]
    assert seen["note"] == f"one graph launch of {n_kernels} kernels"
    assert (seen["capturing"], seen["last error"]) == (0, 0)
    assert seen["is right"]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("cudaStreamIsCapturing@1=1", "cudaStreamIsCapturing of CUDA fails with status 1"),
        ("cudaStreamWaitEvent@1=400", "cudaStreamWaitEvent of CUDA fails with status 400"),
        ("cudaEventRecord@1=400", "cudaEventRecord of CUDA fails with status 400"),
        ("cudaMemcpyAsync@1=1", "CUDA Runtime Error: error (1)"),
        ("cuLaunchKernelEx@1=1", "CUDALaunch Error"),
    ],
)
def test_a_failed_run_is_an_error_of_its_call_alone(
    run: Run, n_kernels: int, spec: str, reason: str
) -> None:
    """The next call runs, and the one behind it is a graph launch."""
    seen = run("fail", "views", spec)

    (error,) = seen["errors"]
    assert reason in error
    assert seen["launched"][-1] == [0, n_kernels]
    assert seen["warnings"] == []
    assert (seen["capturing"], seen["last error"]) == (0, 0)
    assert seen["is right"]


@pytest.mark.parametrize(
    ("action", "error"),
    [
        ("malloc", "CUDA"),
        ("synchronize", "cudaStreamSynchronize of CUDA fails with status 900"),
        ("synchronize device", "cudaDeviceSynchronize of CUDA fails with status 900"),
        ("unseen", "cudaStreamEndCapture of CUDA fails with status 901"),
        ("wait", "cudaStreamWaitEvent of CUDA fails with status 905"),
        ("begin", "cudaStreamBeginCapture of CUDA fails with status 401"),
        ("copy", "other work for the GPU than kernels"),
        ("thread", ""),
        ("garbage", ""),
        ("nothing", ""),
    ],
)
def test_captures_end_where_they_are_not_possible(pool: Pool, action: str, error: str) -> None:
    """The stream can be captured again; what other threads do does not end it."""
    seen = call(pool, "capture", action)

    assert error in seen
    assert bool(seen) == bool(error)


def test_calls_of_threads_run_one_after_the_other(run: Run) -> None:
    """Each gets its own outputs, and a stream waits for the one that ran before it."""
    seen = run("use_threads", "views")

    assert seen["problems"] == []
    last, waiting = "", set()
    n_launches = 0
    for name, _, *words in seen["log"]:
        if name == "cudaStreamWaitEvent":
            waiting.add(words[0])
        elif name == "cudaGraphLaunch":
            n_launches += 1
            assert words[1] == last or not last or words[1] in waiting
            last, waiting = words[1], set()
    assert n_launches == 6 * 20


def test_libraries_share_no_memory(run: Run, n_kernels: int) -> None:
    """A library that is loaded twice may run twice at once, and outlives the other."""
    seen = run("share_nothing", "plain")

    assert seen["shared"] == []
    assert count(seen["log"], "launch") == 0
    assert count(seen["log"], "replay") == n_kernels
    assert not any("freed-memory" in words for words in seen["log"])


def test_forked_process_is_refused(pool: Pool, folders: dict[str, str]) -> None:
    """The message says what to do, and the process ends as usual."""
    message, status = call(pool, "fork", folders["plain"])

    assert "forked after the library was loaded" in message
    assert status == 0


def test_failed_context_is_an_error(pool: Pool, folders: dict[str, str], tmp_path: Path) -> None:
    """The message says what to do, and the memory that is dropped does not abort the process."""
    inputs = str(tmp_path / "inputs.npz")
    write_arrays(inputs, gpu_cases.arrays())

    errors = call(pool, "break_context", folders["plain"], inputs)

    assert len(errors) == 2
    assert all("status 700" in each and "start another one" in each for each in errors)
    with pytest.raises(WorkerLost, match="status 75"):  # it does not serve another call
        call(pool, "arrays")


@pytest.mark.slow("starts a process that imports TVM")
def test_process_with_a_failed_context_ends_as_usual(driver: Path, folders: dict[str, str]) -> None:
    """Libraries that are left at its end are not freed."""
    code = f"""
        from {gpu_cases.__name__} import arrays, failing, load
        library = load({folders["plain"]!r})
        library(arrays())
        with failing("cudaGraphLaunch=700"):
            library(arrays())
    """

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | {"LD_LIBRARY_PATH": str(driver)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "start another one" in done.stderr.splitlines()[-1]


def test_callers_may_capture_calls(run: Run, n_kernels: int) -> None:
    """Their graph gets the kernels and their branches, without events of other streams."""
    seen = run("capture_a_call", "plain")

    assert "call the library once before" in seen["early"]
    assert seen["kernels"] == n_kernels
    assert count(seen["log"], "capture") == n_kernels
    assert count(seen["log"], "cuStreamUpdateCaptureDependencies_v2")
    assert not count(seen["log"], "cudaGraphLaunch", "cudaEventRecord", "cudaStreamWaitEvent")


@pytest.fixture(scope="module")
def scratch_library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Library of a function whose two kernels share scratch memory."""
    rows = te.placeholder((256, 300), "float32", name="x")
    k, k2 = (te.reduce_axis((0, 300), name=name) for name in ("k", "k2"))
    sums = te.compute((256,), lambda i: te.sum(rows[i, k], axis=k), name="s")
    shares = te.compute((256, 300), lambda i, j: rows[i, j] / sums[(i + 1) % 256], name="y")
    out = te.compute((256,), lambda i: te.sum(shares[i, k2] * rows[i, k2], axis=k2), name="z")
    target = make_target(worker.describe_target("cuda:sm_90").spec)
    workload = workloads.as_workload(te.create_prim_func([rows, out]))
    scheduled = schedule_by_default(workload, target)
    library = tmp_path_factory.mktemp("scratch") / "library.so"
    module = nvrtc.lower(scheduled, target)
    nvrtc.export(module, nvrtc.compile_devices(module, target), library)
    return str(library)


def test_kernels_take_memory_of_their_library(
    pool: Pool, scratch_library: str, tmp_path: Path
) -> None:
    """No thread, pool or other library gets it, until the library is dropped."""
    seen = call(pool, "take_scratch", scratch_library, str(tmp_path))

    first, again, other, nobody = (
        {*seen["used"][number], *seen["used"][number + 1]} for number in (0, 2, 4, 6)
    )
    assert len(first) == len(other) == len(nobody) == 1
    assert first == again
    assert len(first | other | nobody) == 3
    assert count(seen["log"], "cudaMalloc") == 1
    assert not any("freed-memory" in words for words in seen["log"])
    assert "scratch memory of a kernel: " in seen["error"]


def test_kernels_beside_each_other_share_no_scratch_memory(
    pool: Pool, scratch_library: str, tmp_path: Path
) -> None:
    """The call that needs both takes memory of one of them, and a capture takes what a run took."""
    launched, replayed = call(
        pool, "take_scratch_beside_each_other", scratch_library, str(tmp_path)
    )

    first, second, third = (set(launched[number : number + 2]) for number in (0, 2, 4))
    assert not first & second
    assert third <= first | second
    assert replayed == launched


def test_benchmarks_time_graph_launches(run: Run, n_kernels: int, tmp_path: Path) -> None:
    """Inputs and outputs stay on the device."""
    inputs = tmp_path / "inputs.npz"
    write_arrays(inputs, gpu_cases.arrays())

    seen = run("time_runs", "plain", str(inputs))

    assert seen["n"] == 4
    assert seen["note"] == f"one graph launch of {n_kernels} kernels, some beside each other"
    assert seen["outputs"] == {"output_0": [32, 8, 8], "output_1": [32, 64]}
    # The program has three calls of objects, which a profile times one by one.
    assert seen["calls"] == [[0, 1, 2]] * 2
    n_plain, n_runs = 1, 5
    chosen = [words[0] for words in seen["log"]].index("cudaGraphExecDestroy")
    assert count(seen["log"][chosen:], "cudaGraphLaunch") == n_runs
    assert count(seen["log"], "launch") == n_plain * n_kernels


@pytest.mark.parametrize("views", [False, True])
def test_plan_of_a_pack_launches_what_a_library_launches(
    run: Run, tmp_path: Path, views: bool
) -> None:
    """The same sizes in the same order, on memory that is shared in the same places."""
    folder, made = "views" if views else "plain", model(tmp_path, 32, views)
    spec = worker.describe_target("cuda:sm_90").spec
    tasks = {each.workload: each.ir for each in worker.extract(made, spec).tasks}
    launched = [
        words[:-1] if words[-1] == "freed-memory" else words
        for words in run("first_launches", folder)
    ]

    plan = worker.pack_network(made, spec)

    planned = []
    for name, blocks in plan.calls:
        candidate = plan.others.get(name) or worker.pack_schedule(tasks[name], spec, "")
        for kernel in candidate.kernels:
            pointers = [(*blocks, "workspace")[at] for at in kernel.pointers]
            zeros = ["zero"] * (kernel.n_parameters - len(pointers))
            planned.append((kernel.grid[0], kernel.block[0], [*pointers, *zeros]))
    assert [(int(words[1]), int(words[2])) for words in launched] == [
        (grid, block) for grid, block, _ in planned
    ]
    places: dict[str, Any] = {}
    for words, (_, _, pointers) in zip(launched, planned, strict=True):
        for address, place in zip(words[4:], pointers, strict=True):
            assert places.setdefault(address, place) == place
    assert len(set(map(str, places.values()))) == len(places)
