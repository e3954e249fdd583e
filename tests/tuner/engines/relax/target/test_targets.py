"""Targets are resolved to one canonical form, and unusable ones are refused."""

import json
import os

import pytest
import tvm

from tuner.engines.relax import worker
from tuner.errors import TargetError
from tuner.workers.confinement.environment import MACHINE_CORES


def test_this_cpu_is_described() -> None:
    """The target has the CPU and its cores, the device the name of the processor."""
    info = worker.describe_target("llvm")

    spec = json.loads(info.spec)
    assert info.kind == spec["kind"] == "llvm"
    assert info.problem == ""
    assert spec["num-cores"] == len(os.sched_getaffinity(0))
    assert spec["mcpu"]
    assert info.device["name"]
    assert {"tvm", "llvm", "n_cores"} <= set(info.device)


def test_canonical_form_describes_itself() -> None:
    """A resolved target resolves to itself, so that equal targets have equal rows."""
    info = worker.describe_target("llvm")

    assert worker.describe_target(info.spec) == info
    spec = json.loads(info.spec)
    shuffled = json.dumps(dict(reversed(spec.items())), indent=1)
    assert worker.describe_target(f" {shuffled} ").spec == info.spec


def test_options_are_attributes() -> None:
    """The form that compilers take names the same target as JSON."""
    mattr = ["+avx512f", "-fma"]
    attributes = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell", "mattr": mattr}

    options = "llvm -mtriple=x86_64-linux-gnu -mcpu=haswell -mattr=+avx512f,-fma -num-cores=4"
    info = worker.describe_target(options)

    assert info == worker.describe_target(json.dumps({**attributes, "num-cores": 4}))
    assert info.machine == "x86_64"
    assert "avx2" in info.features
    assert not {"fma", "avx512f"} & set(info.features)


def test_code_for_a_gpu_needs_what_its_host_has() -> None:
    """The host may be another CPU than this one."""
    host = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "skylake-avx512"}

    described = worker.describe_target(json.dumps({"kind": "cuda", "arch": "sm_90", "host": host}))

    assert "avx512f" in described.features
    assert "avx512f" not in worker.describe_target("cuda:sm_90").features


def test_cuda_architecture_gets_its_limits() -> None:
    """An absent GPU can be named, and has the limits that candidate generation needs."""
    info = worker.describe_target("cuda:sm_90")

    spec = json.loads(info.spec)
    assert info.kind == "cuda"
    assert spec["arch"] == "sm_90"
    assert spec["max_threads_per_block"] == 1024


@pytest.mark.parametrize(
    "spec", ["cuda:sm_80", '{"kind":"cuda","arch":"sm_80"}', "nvidia/geforce-rtx-3090"]
)
def test_every_way_to_name_a_gpu_gives_its_limits(spec: str) -> None:
    """Every notation of a target yields the limits that candidates need, and a fixed point."""
    info = worker.describe_target(spec)

    limits = {"max_threads_per_block", "max_shared_memory_per_block", "thread_warp_size"}
    assert limits < set(json.loads(info.spec))
    assert worker.describe_target(info.spec) == info


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ('{"kind":"llvm","mtriple":"aarch64-linux-gnu","mcpu":"cortex-a72"}', "aarch64"),
        ('{"kind":"llvm","mtriple":"riscv64-linux-gnu"}', "riscv64"),
    ],
)
def test_other_machine_is_a_problem(spec: str, words: str) -> None:
    """Code for another processor can be described but not run."""
    assert words in worker.describe_target(spec).problem


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("", "unknown target"),
        ("nonsense", "unknown target 'nonsense'"),
        ("nvidia/geforce-none", "unknown target"),
        ("{broken", "not valid JSON"),
        ("{}", "target"),
        ('{"kind":"metal"}', "metal"),
        ('{"kind":"opencl"}', "opencl"),
        ('{"kind":"llvm","mcpu":"pentium-99"}', "pentium-99"),
        ('{"kind":"llvm","mcpu":"hasswell"}', "did you mean haswell?"),
        ("llvm -mcpu=native", "llvm alone means this CPU"),
        ("llvm haswell", "'haswell', which is not an option"),
        ("x86-64-v3", "use llvm -mcpu=x86-64-v3"),
        ('{"kind":"llvm","mtriple":"x86_64-linux-gnu","mcpu":"pentium4"}', "no 64-bit mode"),
        ('{"kind":"llvm","mtriple":"riscv64-linux-gnu","mcpu":"rocket-rv32"}', "no 64-bit mode"),
        ('{"kind":"llvm","mtriple":"aarch64-linux-gnu","mcpu":"haswell"}', "for aarch64"),
        ('{"kind":"llvm","mtriple":"nowhere"}', "the machine nowhere, which is not supported"),
        ('{"kind":"llvm","mtriple":"mips64-linux-gnu"}', "mips64, which is not supported"),
        ('{"kind":"llvm","mtriple":"arm64-apple-darwin"}', "not for Linux"),
        ('{"kind":"llvm","mtriple":"x86_64-pc-windows-msvc"}', "not for Linux"),
        ('{"kind":"llvm","mtriple":"x86_64-linux-gnu","mattr":["+sse4"]}', "no feature 'sse4'"),
        ('{"kind":"llvm","mattr":["avx2"]}', "must begin with + or -"),
        ('{"kind":"llvm","mattr":"+avx2"}', "mattr must be a list"),
        ('{"kind":"llvm","num-cores":0}', "num-cores must be at least 1"),
        ('{"kind":"cuda","arch":"sm_90","host":{"kind":"llvm","mcpu":"x"}}', "no CPU 'x'"),
        ('{"kind":"llvm","colour":"red"}', "may not set 'colour'"),
        ('{"kind":"llvm","cl-opt":["-debug-only=x"]}', "may not set 'cl-opt'"),
        ('{"kind":"llvm","jit":"orcjit"}', "may not set 'jit'"),
        ('{"kind":"cuda","from_device":0}', "may not set 'from_device'"),
        ('{"kind":"cuda","arch":"sm_90","host":{"kind":"llvm","cl-opt":["x"]}}', "'cl-opt'"),
        ('{"kind":"cuda","host":"{\\"kind\\":\\"llvm\\",\\"jit\\":\\"x\\"}"}', "'jit'"),
        ('{"kind":"cuda","host":"{"}', "not valid JSON"),
        ("cuda:", "no architecture ''; it knows"),
        ("cuda:banana", "no architecture 'banana'; it knows"),
        ("cuda:sm_9", "no architecture 'sm_9'; it knows"),
        ("cuda:sm_80a", "no architecture 'sm_80a'; it knows"),
        ('{"kind":"cuda"}', "no architecture"),
    ],
)
def test_bad_target_is_refused_in_one_line(spec: str, words: str) -> None:
    """A target on which TVM would fail later is refused at once."""
    with pytest.raises(TargetError) as caught:
        worker.describe_target(spec)

    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_tag_brings_no_attribute_that_users_may_not_set() -> None:
    """The text of a tag names none itself."""
    tvm.target.register_tag("acme/board", {"kind": "llvm", "cl-opt": ["-debug-only=x"]})

    with pytest.raises(TargetError, match="may not set 'cl-opt'"):
        worker.describe_target("acme/board")


def test_a_process_with_fewer_cores_compiles_for_all_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A service may keep processes that load models to a share of its cores."""
    monkeypatch.setenv(MACHINE_CORES, "48")

    described = worker.describe_target("llvm")

    assert json.loads(described.spec)["num-cores"] == described.device["n_cores"] == 48
