"""A library is profiled inside its network: every call, in order, and nothing counted twice."""

import json
import shutil
from pathlib import Path

import pytest
from sqlalchemy import select

from api.settings import ApiSettings
from records.models import Network, Target
from records.service import submissions
from tests.api import make
from tests.api.conftest import serving
from tests.cli import Cli
from tests.engines import toy
from tuner.profiling.kernel_changes import find_changes
from tuner.profiling.results import from_json
from tuner.settings import Settings

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore:::tvm")]


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """A command line with an untuned library of the zoo in ``out``."""
    cli = Cli(tmp_path_factory.mktemp("mlp"), {"TUNER_N_BUILDERS": "1"})
    answer = cli("build", "zoo:mlp", "-o", "out")
    assert answer.status == 0, answer.err
    return cli


def test_profile_of_a_library(cli: Cli) -> None:
    """Calls add up to the run, beside those of both peers, on page and trace too."""
    files = ("--html", "profile.html", "--trace", "trace.json")
    peers = ("--against", "onnxruntime", "--against", "openvino")
    answer = cli("profile", "out", "--runs", "3", *peers, *files, "--json")
    assert answer.status == 0, answer.err
    profile = answer.json

    manifest = json.loads((cli.folder / "out" / "manifest.json").read_text())
    assert [call["kernel"] for call in profile["calls"]] == [
        call["kernel"] for call in manifest["kernel_calls"]
    ]
    assert sum(kernel["n_calls"] for kernel in profile["kernels"]) == len(profile["calls"])
    assert 0.0 < profile["between_secs"] < profile["median_secs"]
    products = [kernel for kernel in profile["kernels"] if kernel["gflops"]]
    assert [call["nodes"] for call in profile["calls"]] == [
        ["flatten_0", "gemm_1", "relu_2"],
        ["gemm_3", "relu_4"],
        ["gemm_5"],
        ["softmax"],
    ]
    for peer in profile["peers"]:
        assert peer["matched_secs"] == pytest.approx(peer["secs"])
        assert set(peer["by_workload"]) <= {kernel["workload"] for kernel in products}
    assert len(profile["peers"][0]["by_workload"]) == len(products), "ONNX Runtime fuses as we do"
    assert {kernel["n_threads"] for kernel in products} <= set(range(1, profile["n_threads"] + 1))
    assert all(kernel["n_bytes"] for kernel in products)
    assert {kernel["verdict"]["kind"] for kernel in products} <= {"untuned", "roof"}

    page = (cli.folder / "profile.html").read_text()
    assert all(kernel["name"] in page for kernel in profile["kernels"])
    events = json.loads((cli.folder / "trace.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert [event["args"]["kernel"] for event in spans] == [
        call["kernel"] for call in profile["calls"]
    ]
    ends = [event["ts"] + event["dur"] for event in spans]
    assert all(end <= event["ts"] for end, event in zip(ends[:-1], spans[1:], strict=True))


def test_table_names_verdicts_and_what_would_help(cli: Cli) -> None:
    """Every kind in the table is explained below it."""
    answer = cli("profile", "out", "--runs", "1")

    assert answer.status == 0, answer.err
    assert "untuned     has no record" in answer.out
    assert "could gain from `tuner tune zoo:mlp`" in answer.out
    assert "matmul_add_relu[1x128]: flatten_0, gemm_1, relu_2" in answer.out
    assert "between" in answer.out


def test_two_libraries_are_timed_in_turns(cli: Cli) -> None:
    """The verdict is that of the turns; a profile of a hundredth of the times makes it slower."""
    answer = cli("bisect", "out", "out", "--runs", "40", "--json")

    changes = answer.json
    then, now = (from_json(changes[side]) for side in "ab")
    assert answer.status == find_changes(then, now, 0.03).exit_code
    assert len(then.turn_secs) == len(now.turn_secs) == 8
    assert then.turn_secs != now.turn_secs
    assert {each["code"] for each in changes["kernels"] if each["workload"]} == {"same"}

    fast = changes["a"]
    for timed in (fast, *fast["kernels"]):
        timed["turn_secs"] = [secs / 100 for secs in timed["turn_secs"]]
    (cli.folder / "fast.json").write_text(json.dumps(fast))
    slower = cli("bisect", "fast.json", "out", "--runs", "40", "--max-slowdown", "100%")
    assert slower.status == 4, slower.err
    assert slower.out.count("slower") > len(changes["kernels"])
    assert "run: " in slower.out

    fast["inputs"]["data"][0][0] = 7
    (cli.folder / "other.json").write_text(json.dumps(fast))
    shutil.copytree(cli.folder / "out", cli.folder / "wide")
    manifest = cli.folder / "wide" / "manifest.json"
    described = json.loads(manifest.read_text())
    described["programs"][0]["inputs"]["data"][1] = "int8"
    manifest.write_text(json.dumps(described))
    for old, inputs in (("other.json", "float32[7,"), ("wide", "int8[1,")):
        refused = cli("bisect", old, "out")
        assert refused.status == 2
        assert f"{old} takes the inputs data {inputs}" in refused.complaint
        assert "and out takes data float32[1," in refused.complaint


def test_a_profile_is_sent_to_the_job_of_a_server(cli: Cli) -> None:
    """The server judges it: the command that would help adds trials to its job."""
    data = cli.folder / "data"
    settings = Settings(f"sqlite:///{data / 'tuner.db'}", data, toy.NAME, 1)
    with serving(ApiSettings(settings)) as served:
        with served.sessions.begin() as session:
            job = make.job(session).id
            network = session.scalars(select(Network.id)).one()
            target = session.scalars(select(Target.id)).one()
            submissions.assign(session, job, network, target, {})
        server = ("--server", str(served.client.base_url))
        command = (*server, "profile", "out", "--runs", "5", "--job", str(job))
        shown, answer = cli(*command), cli(*command, "--json")
        stored = served.client.get(f"/api/v1/jobs/{job}/profile").json()["profile"]

    assert answer.status == 0, answer.err
    assert f"`tuner --server {server[1]} jobs budget {job} --trials 356`" in shown.out
    assert stored["kernels"] == answer.json["kernels"]
    assert {kernel["verdict"]["command"] for kernel in stored["kernels"]} == {
        f"tuner jobs budget {job} --trials 356"
    }


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("out", "--runs", "0"), "--runs must be at least 1, got 0"),
        (("nowhere",), "nowhere is not a library"),
        (("out", "--job", "1"), "--job needs a server"),
        (("out", "--html", "nowhere/page.html", "--runs", "1"), "--html: cannot write"),
        (("out", "--model", "x.onnx", "--against", "openvino", "--runs", "1"), "x.onnx"),
    ],
)
def test_wrong_requests(cli: Cli, arguments: tuple[str, ...], complaint: str) -> None:
    """The message names the option."""
    answer = cli("profile", *arguments)

    assert answer.status == 2
    assert complaint in answer.complaint


def test_a_library_without_timers_names_its_engine(tmp_path: Path) -> None:
    """Libraries of other engines have no timers."""
    cli = Cli(tmp_path, {"TUNER_ENGINE": toy.NAME, "TUNER_N_BUILDERS": "1"})
    assert cli("build", "zoo:mlp", "-o", "out").status == 0
    answer = cli("profile", "out")

    assert answer.status == 2
    assert "cannot be timed" in answer.complaint
