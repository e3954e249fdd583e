"""Execution of artifacts: comparison of the outputs, then timing, then comparison again."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import tvm
from tvm import te
from tvm.script import tir as T  # noqa: N812  its name in every TVMScript
from tvm.target import Target

from tuner.engines import runs
from tuner.engines.base import EvaluatorSettings, RunRequest, RunResult
from tuner.engines.relay.codegen import build as artifacts
from tuner.engines.relay.run.clock import readings
from tuner.engines.runs import KERNEL, LoadedKernel
from tuner.engines.runtime import cache_state, timing
from tuner.engines.runtime.cache_state import CacheKernels, CpuCaches
from tuner.engines.runtime.clock_readings import ClockReadings
from tuner.engines.runtime.timing import Sample, Sampled, SampleHook
from tuner.engines.verification.checks import Array

# Name under which the time evaluator looks up what precedes each sample.
_HOOK = "tuner.before_sample"


@lru_cache(maxsize=1)
def operations() -> CpuCaches:
    """Return the operations, built once in a process."""
    return CpuCaches(
        CacheKernels(
            tensor=tvm.nd.array,
            view=tvm.nd.from_dlpack,
            read_lines=read_lines,
            rewrite_lines=rewrite_lines,
            evict=tvm.get_global_func("cache_flush_cpu_non_first_arg"),
        )
    )


def read_lines(n_cores: int, n_lines: int, n_words: int) -> Any:
    """Build a kernel in which every core reads the first word of each line of its share."""
    buffer = te.placeholder((n_cores, n_lines, n_words), name="buffer")
    line = te.reduce_axis((0, n_lines), name="line")
    largest = te.compute(
        (n_cores,), lambda core: te.max(buffer[core, line, 0], axis=line), name="largest"
    )
    schedule = te.create_schedule(largest.op)
    schedule[largest].parallel(largest.op.axis[0])
    return tvm.build(schedule, [buffer, largest], target=Target("llvm"))


def rewrite_lines(n_cores: int) -> Any:
    """Build a kernel in which every core writes one word of each cache line of its share.

    It stores each word exclusive-or ``key``: given 0 at run time, no word changes, and no
    compiler can leave the store out.
    """

    @T.prim_func  # type: ignore[untyped-decorator]
    def main(words: T.handle, key: T.int32) -> None:
        n = T.int64()
        buffer = T.match_buffer(words, (n,), "int32")
        for core in T.parallel(n_cores):
            for i in range((n // 16 + n_cores - 1) // n_cores):
                if core * ((n // 16 + n_cores - 1) // n_cores) + i < n // 16:
                    buffer[(core * ((n // 16 + n_cores - 1) // n_cores) + i) * 16] = T.bitwise_xor(
                        buffer[(core * ((n // 16 + n_cores - 1) // n_cores) + i) * 16], key
                    )

    function = main.with_attr("global_symbol", "main")
    return tvm.build(tvm.IRModule({"main": function}), target=Target("llvm"))["main"]


class Kernel(LoadedKernel):
    """A loaded artifact with its arguments in memory."""

    def bind(self, arrays: Sequence[Array]) -> None:
        """Copy inputs, packed as the kernel expects them."""
        self.arguments = [tvm.nd.array(array) for array in arrays]
        for entry in self.packed:
            packed = tvm.nd.empty(tuple(entry["shape"]), entry["dtype"])
            pack = self.module[artifacts.pack_name(entry["index"])]
            pack(self.arguments[entry["index"]], packed)
            self.arguments[entry["index"]] = packed


def run(request: RunRequest) -> RunResult:
    """Compare and time one artifact; see :class:`Engine`."""
    return runs.run(_load, request, _sample)


def run_interleaved(requests: list[RunRequest], n_turns: int) -> list[RunResult]:
    """Time artifacts in turns; see :class:`Engine`."""
    return runs.run_interleaved(_load, requests, _sample, n_turns)


def _load(request: RunRequest) -> Kernel:
    """Load an artifact; its inputs are not bound yet."""
    folder = Path(request.artifact)
    description = json.loads((folder / artifacts.DESCRIPTION).read_text())
    return Kernel(
        module=tvm.runtime.load_module(str(folder / artifacts.LIBRARY)),
        inputs=tuple((tuple(each["shape"]), each["dtype"]) for each in description["inputs"]),
        weight_indices=description["weights"],
        outputs=[tvm.nd.empty(tuple(e["shape"]), e["dtype"]) for e in description["outputs"]],
        packed=description["packed"],
    )


def _sample(kernel: Kernel, request: RunRequest) -> Sampled:
    """Sample a kernel in the cache state of its network."""
    settings = request.evaluator
    clock = readings(request.target)
    sampled = timing.sample(lambda repeat: _take(kernel, settings, repeat, clock), request)
    return replace(sampled, conditions={**cache_state.describe(settings), **sampled.conditions})


def _take(
    kernel: Kernel, settings: EvaluatorSettings, repeat: int, clock: ClockReadings | None
) -> Sequence[Sample]:
    """Sample the run time of a kernel ``repeat`` times."""
    kernels = operations() if settings.cache_flush else None
    restore = cache_state.restorer(kernels, kernel.arguments_by_use, settings)
    hook = SampleHook(restore, clock)
    tvm._ffi.register_func(_HOOK, hook.__call__, override=True)
    evaluator = kernel.module.time_evaluator(
        KERNEL,
        tvm.cpu(),
        number=settings.number,
        repeat=repeat,
        min_repeat_ms=0 if settings.cache_flush else settings.min_repeat_ms,
        cooldown_interval_ms=settings.cooldown_ms,
        f_preproc=_HOOK,
    )
    secs = [float(one) for one in evaluator(*kernel.arguments, *kernel.outputs).results]
    return hook.samples(secs, settings)
