"""The commands and the Python of the how-to pages work as written, on small networks."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.docs.documents import ROOT
from tests.docs.test_tutorial import run
from tests.services import free_port, is_ready
from tests.tuner.networks.models import model
from tests.waiting import wait_for

pytestmark = [pytest.mark.tvm, pytest.mark.slow("five minutes of real tuning")]
# Enough for the numbers of records on the pages.
_TRIALS = "24"


@dataclass(frozen=True)
class Machine:
    """A folder with models, and a data directory of its own."""

    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        """Environment of its commands."""
        return {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TUNER_DATA_DIR": str(self.folder / "data"),
        }

    def run(self, line: str, **environ: str) -> str:
        """Run a command of a page, which has to succeed, and return its output."""
        status, output = run(["bash", "-c", line], self.folder, {**self.environ, **environ})
        assert status == 0, f"status {status} of {line}\n{output}"
        return output

    def run_python(self, program: str) -> str:
        """Run the Python of a page, which has to succeed, and return its output."""
        status, output = run([sys.executable, "-c", program], self.folder, self.environ)
        assert status == 0, output
        return output


def blocks(page: str, kind: str) -> list[str]:
    """Return the blocks of a kind on a page, with few trials."""
    text = (ROOT / "docs" / page).read_text()
    parts = re.findall(rf"^```{kind}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [re.sub(r"trials([ =])\d+", rf"trials\g<1>{_TRIALS}", block) for block in parts]


def lines(block: str) -> list[str]:
    """Return the commands of a block."""
    return re.findall(r"^\$ (.*)", block, re.MULTILINE)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine that has tuned and built a model with convolutions."""
    opened = Machine(tmp_path_factory.mktemp("machine"))
    rng = np.random.default_rng(0)
    weights = {
        "w0": rng.random((16, 3, 3, 3), np.float32),
        "w1": rng.random((32, 16, 3, 3), np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["data", "w0"], ["c0"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("Conv", ["r0", "w1"], ["out"], pads=[1, 1, 1, 1]),
    ]
    small = model(nodes, {"data": (1, 3, 32, 32)}, {"out": (1, 32, 32, 32)}, weights)
    onnx.save(small, opened.folder / "model.onnx")
    opened.run(f"tuner tune model.onnx --trials {_TRIALS}")
    opened.run("tuner build model.onnx -o model.lib")
    return opened


@pytest.mark.parametrize("page", ["ci.md", "slow-kernels.md"])
def test_the_commands_of_a_page_work(machine: Machine, page: str) -> None:
    """They run one after the other in the folder of a tuned model."""
    for block in blocks(page, "console"):
        for line in lines(block):
            machine.run(line)


def test_records_move_to_another_machine(machine: Machine, tmp_path: Path) -> None:
    """The second block of the page runs where only the model and the file of records are."""
    here, there = blocks("move-records.md", "console")
    for line in lines(here):
        machine.run(line)
    other = Machine(tmp_path)
    for name in ("model.onnx", "best.jsonl"):
        shutil.copy(machine.folder / name, tmp_path)

    for line in lines(there):
        output = other.run(line)

    assert (tmp_path / "model.lib" / "manifest.json").exists(), output


def test_a_team_uses_a_service(machine: Machine, tmp_path: Path) -> None:
    """The operator starts it with tokens; a member checks it, tunes, lists and builds."""
    start, use = (lines(block) for block in blocks("team.md", "console"))
    host, member = Machine(tmp_path / "host"), Machine(tmp_path / "member")
    for each in (host, member):
        each.folder.mkdir()
    shutil.copy(machine.folder / "model.onnx", member.folder)
    url = f"http://127.0.0.1:{free_port()}"
    *create, serve = start
    secrets = [re.findall(r"^tuner_\S+", host.run(line), re.MULTILINE)[0] for line in create]
    with serving(host, serve, url):
        export, *commands = use
        assert export.startswith("export ")
        known = {"http://127.0.0.1:8080": url, "tuner_...": secrets[-1]}
        for text, actual in known.items():
            export = export.replace(text, actual)
        for line in commands:
            member.run(f"{export}; {line}")

    assert (member.folder / "model.lib" / "manifest.json").exists()


@contextmanager
def serving(host: Machine, command: str, url: str) -> Iterator[None]:
    """Run the command that starts a service until the block ends."""
    with (host.folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command} --port {url.rpartition(':')[2]}"],
            cwd=host.folder,
            env=host.environ,
            stdout=log,
            stderr=log,
        )
        try:
            wait_for(lambda: is_ready(url) or process.poll() is not None)
            assert process.poll() is None, (host.folder / "serve.log").read_text()
            yield
        finally:
            process.terminate()
            process.wait(60)


def test_buckets_serve_dynamic_shapes(tmp_path: Path) -> None:
    """The commands, and then the Python with a shape between the buckets."""
    rng = np.random.default_rng(0)
    weights = {
        "words": rng.random((100, 16), np.float32),
        "w": rng.random((16, 16), np.float32),
        "last": np.array([-1]),
    }
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["e"]),
        helper.make_node("Cast", ["attention_mask"], ["m"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["m", "last"], ["m3"]),
        helper.make_node("Mul", ["e", "m3"], ["x"]),
        helper.make_node("MatMul", ["x", "w"], ["out"]),
    ]
    sizes = ("batch", "sequence")
    names = ("input_ids", "attention_mask")
    kinds = dict.fromkeys(names, TensorProto.INT64)
    bert = model(nodes, dict.fromkeys(names, sizes), {"out": (*sizes, 16)}, weights, kinds=kinds)
    onnx.save(bert, tmp_path / "bert.onnx")
    machine = Machine(tmp_path)
    (commands,), (program,) = blocks("buckets.md", "console"), blocks("buckets.md", "python")
    for line in lines(commands):
        machine.run(line)

    inputs = "import numpy as np\nids = mask = np.ones((3, 50), np.int64)\n"
    shown = machine.run_python(f"{inputs}{program}\nprint(outputs['out'].shape)")

    assert "(3, 50, 16)" in shown


def test_a_module_is_compiled_at_run_time(tmp_path: Path) -> None:
    """Two batch sizes are two libraries; a function has its own."""
    pytest.importorskip("torch")
    module, function, _service = blocks("jit.md", "python")

    shown = Machine(tmp_path).run_python(module + function)

    assert "misses=1" in shown
