"""Worker functions of this engine."""

# isort: off
from tuner.engines.relay import tvm_compat  # noqa: F401  before anything imports TVM

# isort: on
from tuner.engines.relay.codegen.build import build
from tuner.engines.relay.codegen.link import link_network
from tuner.engines.relay.codegen.objects import compile_subgraph
from tuner.engines.relay.extract import extract
from tuner.engines.relay.logs import (
    read_target,
    read_traces,
    read_workload,
    write_target,
    write_traces,
    write_workload,
)
from tuner.engines.relay.network import run_network
from tuner.engines.relay.propose import propose
from tuner.engines.relay.run.artifacts import run, run_interleaved
from tuner.engines.relay.run.clock import clock_secs
from tuner.engines.relay.run.peaks import calibration_kernel, measure_peaks
from tuner.engines.relay.run.reference import reference
from tuner.engines.relay.targets import describe_target
from tuner.engines.relay.workloads import define, profile

__all__ = [
    "build",
    "calibration_kernel",
    "clock_secs",
    "compile_subgraph",
    "define",
    "describe_target",
    "extract",
    "link_network",
    "measure_peaks",
    "profile",
    "propose",
    "read_target",
    "read_traces",
    "read_workload",
    "reference",
    "run",
    "run_interleaved",
    "run_network",
    "write_target",
    "write_traces",
    "write_workload",
]
