"""From a network to a tuned library without substitutes.

A server and a worker run as processes, with PostgreSQL and the real engine.
"""

import hashlib
import subprocess
from pathlib import Path

import httpx
import numpy as np
import onnx
import pytest
from onnx import helper

import tuner
from tests.service.rig import rig
from tests.tuner.networks.detectors import detector, feeds
from tests.tuner.networks.models import Array, difference, model, run
from tuner.client import TunerClient

pytestmark = [
    pytest.mark.slow("a minute and more of real tuning"),
    pytest.mark.tvm,
    pytest.mark.filterwarnings("ignore:::tvm"),
]

_TRIALS = 4
_SHAPE = (1, 3, 16, 16)


def draw(*shape: int, seed: int) -> Array:
    """Draw numbers around zero."""
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def small_network() -> bytes:
    """Return an ONNX file of two convolutions, an average and a classifier."""
    nodes = [
        helper.make_node("Conv", ["data", "w0", "b0"], ["c0"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("Conv", ["r0", "w1"], ["c1"], strides=[2, 2]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("GlobalAveragePool", ["r1"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w2", "b2"], ["g"], transB=1),
        helper.make_node("Softmax", ["g"], ["y"]),
    ]
    weights = {
        "w0": draw(8, 3, 3, 3, seed=1),
        "b0": draw(8, seed=2),
        "w1": draw(16, 8, 3, 3, seed=3),
        "w2": draw(10, 16, seed=4),
        "b2": draw(10, seed=5),
    }
    built = model(nodes, {"data": _SHAPE}, {"y": (1, 10)}, weights)
    onnx.checker.check_model(built)
    content: bytes = built.SerializeToString()
    return content


def unpacked(archive: bytes, folder: Path) -> Path:
    """Unpack an archive with tar, and return the folder of the library in it."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-xzf", "-", "-C", str(folder)], input=archive, check=True)
    (library,) = folder.iterdir()
    return library


@pytest.mark.parametrize(
    ("content", "arrays"),
    [
        pytest.param(
            small_network(),
            {"data": draw(*_SHAPE, seed=6)},
            id="classifier",
            marks=pytest.mark.in_ci,
        ),
        # It takes the same way, and has a tail as well.
        pytest.param(detector().SerializeToString(), feeds(), id="detector"),
    ],
)
def test_a_network_becomes_a_tuned_library_that_computes_the_same(
    postgres_url: str, tmp_path: Path, content: bytes, arrays: dict[str, Array]
) -> None:
    """A model is uploaded, tuned, built and downloaded, and computes what ONNX Runtime does."""
    path = tmp_path / "small.onnx"
    path.write_bytes(content)
    with rig(postgres_url, tmp_path, is_toy=False) as opened:
        url = opened.serve()
        with TunerClient(url) as client:
            submitted = client.tune(path, trials=_TRIALS, trials_per_round=2)
            job = submitted.job.id
            events = []
            for event in client.events(job):
                events.append(event)
                if event.kind == "state" and event.data["state"] in ("done", "failed"):
                    break
            table = client.table(job)
            build = client.wait_for_build(client.build(job))
        assert build.state == "done", build.message
        archive = httpx.get(url + submitted.links.library, trust_env=False, verify=False)
        opened.check_counts(job)

    assert (events[-1].data["state"], table.job.trials) == ("done", _TRIALS), events[-1]
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert sum(event.kind == "trial" for event in events) == _TRIALS
    assert any(task.latency_secs for task in table.tasks)
    assert hashlib.sha256(archive.content).hexdigest() == build.sha256
    assert archive.headers["etag"] == f'"{build.sha256}"'

    library = tuner.load(unpacked(archive.content, tmp_path / "library"))
    outputs = library(arrays)
    for actual, expected in zip(outputs.values(), run(content, arrays), strict=True):
        assert actual.shape == expected.shape
        assert difference(actual, expected) < 1e-4
