"""Worker functions of this engine."""

# isort: off
from tuner.engines.relax import without_torch  # noqa: F401  before anything imports TVM

# isort: on
from tuner.engines.relax.codegen.build import build
from tuner.engines.relax.codegen.cuda.kernel_texts import print_kernel
from tuner.engines.relax.codegen.cuda.packing import (
    offer_kernels,
    pack_candidate,
    pack_schedule,
    print_candidates,
)
from tuner.engines.relax.codegen.link import link_network
from tuner.engines.relax.codegen.objects import compile_subgraph
from tuner.engines.relax.codegen.packed_network import pack_network
from tuner.engines.relax.graph.extract import extract
from tuner.engines.relax.ir.workloads import define
from tuner.engines.relax.logs import (
    read_target,
    read_traces,
    read_workload,
    write_target,
    write_traces,
    write_workload,
)
from tuner.engines.relax.network import (
    launch_note,
    observe_network,
    profile_network,
    run_network,
)
from tuner.engines.relax.profile import profile
from tuner.engines.relax.run.artifacts import run, run_interleaved
from tuner.engines.relax.run.clock import clock_secs
from tuner.engines.relax.run.peaks import calibration_kernel, measure_peaks
from tuner.engines.relax.run.reference import reference
from tuner.engines.relax.run.rpc import call_remotely
from tuner.engines.relax.run.sanitizer import sanitize
from tuner.engines.relax.search.propose import propose
from tuner.engines.relax.target.targets import describe_target

__all__ = [
    "build",
    "calibration_kernel",
    "call_remotely",
    "clock_secs",
    "compile_subgraph",
    "define",
    "describe_target",
    "extract",
    "launch_note",
    "link_network",
    "measure_peaks",
    "observe_network",
    "offer_kernels",
    "pack_candidate",
    "pack_network",
    "pack_schedule",
    "print_candidates",
    "print_kernel",
    "profile",
    "profile_network",
    "propose",
    "read_target",
    "read_traces",
    "read_workload",
    "reference",
    "run",
    "run_interleaved",
    "run_network",
    "sanitize",
    "write_target",
    "write_traces",
    "write_workload",
]
