"""A tuner in 300 lines: the ideas of Subgraph Tuner, without its service, caches and safeguards.

A network is split into tasks: its distinct fused subgraphs, with their number of occurrences. The
task scheduler gives each round of trials to the task that is expected to shorten the network most.
A round proposes candidates, compares each with the unscheduled subgraph, and times it. Every trial
is a row in a database: a second run continues where the first one ended. At the end the best record
of each task is applied, and the library is checked.
"""

import argparse
import concurrent.futures
import math
import multiprocessing
import random
import sqlite3
import sys
import types
from collections import Counter
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.parser
import onnx.reference
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule import TuneContext
from tvm.s_tir.meta_schedule.space_generator import PostOrderApply
from tvm.s_tir.schedule import Trace

# TVM would parse the intrinsics of all GPUs, for 40 s; the CPU needs none.
sys.modules["tvm.s_tir.tensor_intrin"] = types.ModuleType("tensor_intrin")

TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 1})
CANDIDATES_PER_ROUND = 4
# A worker that does not answer in this time is replaced: a bad candidate must not stop a search.
TRIAL_TIMEOUT_SECS = 30
SCHEMA = """
CREATE TABLE IF NOT EXISTS record (
    id INTEGER PRIMARY KEY,
    workload TEXT NOT NULL,     -- hash of the subgraph, the same in every network
    trace TEXT NOT NULL,        -- decisions of the schedule, as JSON
    run_secs REAL,
    error TEXT,                 -- the reason why there is no time
    CHECK ((run_secs IS NULL) <> (error IS NULL))
)"""


def make_model() -> onnx.ModelProto:
    """Return a small network with random weights: four convolutions, three of them equal."""
    layers = "".join(
        f"c{n} = Conv<pads=[1,1,1,1]>(r{n - 1}, w) r{n} = Relu(c{n})" for n in (1, 2, 3)
    )
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        mini (float[1,3,16,16] image) => (float[1,10] scores) {{
            c0 = Conv<pads=[1,1,1,1]>(image, w0) r0 = Relu(c0) {layers}
            pooled = GlobalAveragePool(r3) flat = Flatten(pooled) scores = MatMul(flat, dense)
        }}"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in {"w0": (16, 3, 3, 3), "w": (16, 16, 3, 3), "dense": (16, 10)}.items():
        weights = rng.standard_normal(shape).astype("float32") / math.sqrt(math.prod(shape[1:]))
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    return model


@dataclass
class Task:
    """A subgraph to tune.

    Attributes:
        workload: Hash of the subgraph.
        functions: Names of its kernels in the network.
        module: Its kernel, unscheduled, as ``main``.
        weight: Occurrences in the network.
        best_secs: Best latency after each round, in seconds; inf before a candidate was right.
    """

    workload: str
    functions: list[str]
    module: tvm.IRModule
    weight: int
    best_secs: list[float]


def lower(model: onnx.ModelProto) -> tvm.IRModule:
    """Import a network, and fuse its operators to kernels that ``main`` calls."""
    with TARGET:
        return relax.get_pipeline("zero")(from_onnx(model, keep_params_in_input=False))


def split(network: tvm.IRModule) -> list[Task]:
    """Group the kernels of a network by their structure; a reshape is not worth a search."""
    calls: Counter[str] = Counter()

    def count(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call) and getattr(expr.op, "name", "") == "relax.call_tir":
            calls[expr.args[0].name_hint] += 1

    relax.analysis.post_order_visit(network["main"], count)
    tasks: dict[str, Task] = {}
    for name, n_calls in calls.items():
        if relax.analysis.has_reshape_pattern(network[name]):
            continue
        module = tvm.IRModule({"main": network[name].with_attr("global_symbol", "main")})
        workload = f"{tvm_ffi.structural_hash(module) & (2**64 - 1):016x}"
        task = tasks.setdefault(workload, Task(workload, [], module, 0, []))
        task.functions.append(name)
        task.weight += n_calls
    return list(tasks.values())


def gain(task: Task, *, alpha: float = 0.2, window: int = 3) -> float:
    """Estimate what one more round on a task saves the network, in seconds.

    The recent slope, and the hope that the task keeps its lifetime pace. Source: Zheng et al.,
    "Ansor", OSDI'20, section 6.2.
    """
    if not task.best_secs or not math.isfinite(task.best_secs[-1]):
        return math.inf if len(task.best_secs) < window else 0.0
    back = min(window, len(task.best_secs) - 1)
    before = task.best_secs[-1 - back]
    slope = (before - task.best_secs[-1]) / back if back and math.isfinite(before) else 0.0
    pace = task.best_secs[-1] / len(task.best_secs)
    return task.weight * (alpha * slope + (1 - alpha) * pace)


def propose(task: Task, known: set[str], best: str | None, rng: random.Random) -> list[str]:
    """Return traces of candidates: half are drawn at random, half are mutants of the best one."""
    context = TuneContext(
        mod=task.module, target=TARGET, space_generator=PostOrderApply(), num_threads=1
    )
    spaces = context.generate_design_space()
    proposed: list[str] = []
    for attempt in range(16 * CANDIDATES_PER_ROUND):
        if len(proposed) == CANDIDATES_PER_ROUND:
            break
        schedule = Schedule(task.module, seed=rng.randrange(1, 2**30))
        if best is not None and attempt % 2:
            trace = mutate(replay(task.module, best).trace, rng)
        else:
            trace = Trace(rng.choice(spaces).trace.insts, {})  # decisions are drawn when applied
        try:
            trace.apply_to_schedule(schedule, remove_postproc=True)
            # Parallel, vectorised and unrolled loops follow from the decisions.
            schedule.enter_postproc()
            if not all(post.apply(schedule) for post in context.space_generator.postprocs):
                continue
        except (RuntimeError, ValueError):
            continue  # the drawn decisions do not fit
        text = tvm.ir.save_json(schedule.trace.as_json())
        if text not in known:
            known.add(text)
            proposed.append(text)
    return proposed


def mutate(trace: Trace, rng: random.Random) -> Trace:
    """Return a trace with one decision left open, which is drawn again when it is applied."""
    decisions = {inst: trace.decisions[inst] for inst in trace.insts if inst in trace.decisions}
    if decisions:
        decisions.pop(rng.choice(list(decisions)))
    return Trace(trace.insts, decisions)


def replay(module: tvm.IRModule, trace: str) -> Schedule:
    """Apply the recorded decisions of a schedule to a subgraph."""
    schedule = Schedule(module)
    Trace.apply_json_to_schedule(tvm.ir.load_json(trace), schedule)
    return schedule


def measure(module: str, trace: str) -> float:
    """Build a candidate, compare it with the unscheduled subgraph and time it; in a worker.

    Returns:
        Seconds per run, the median of several.

    Raises:
        ValueError: If its output is wrong.
    """
    subgraph = tvm.ir.load_json(module)
    scheduled = tvm.compile(replay(subgraph, trace).mod, TARGET)
    rng = np.random.default_rng(0)
    shapes = [[int(dim) for dim in param.shape] for param in subgraph["main"].params]
    arrays = [rng.standard_normal(shape) for shape in shapes]
    outputs = []
    for kernel in (tvm.compile(subgraph, TARGET), scheduled):
        tensors = [tvm.runtime.tensor(array.astype("float32")) for array in arrays]
        kernel["main"](*tensors)
        outputs.append(tensors[-1].numpy())
    if not np.allclose(outputs[0], outputs[1], rtol=1e-3, atol=1e-4):
        raise ValueError("wrong output")
    timer = scheduled.mod.time_evaluator("main", tvm.cpu(), repeat=5, min_repeat_ms=20)
    return float(timer(*tensors).median)


class Workers:
    """A process that measures, and is replaced when it crashes or hangs."""

    _pool: concurrent.futures.ProcessPoolExecutor | None = None

    def run(self, task: Task, trace: str) -> tuple[float | None, str | None]:
        """Return the seconds of a candidate, or its error: a failed trial is data."""
        context = multiprocessing.get_context("spawn")
        self._pool = self._pool or concurrent.futures.ProcessPoolExecutor(1, context)
        call = self._pool.submit(measure, tvm.ir.save_json(task.module), trace)
        try:
            return call.result(TRIAL_TIMEOUT_SECS), None
        except (TimeoutError, concurrent.futures.process.BrokenProcessPool) as error:
            self.stop()
            return None, type(error).__name__
        except Exception as error:  # of the compiler, or the comparison
            return None, f"{type(error).__name__}: {error}"

    def stop(self) -> None:
        """End the process, whatever it does."""
        if self._pool is not None:
            for process in (self._pool._processes or {}).values():
                process.kill()
            self._pool.shutdown(cancel_futures=True)
        self._pool = None


def tune(tasks: list[Task], n_trials: int, database: sqlite3.Connection, workers: Workers) -> None:
    """Spend trials on the tasks, each round where it is expected to help most."""
    rng, spent = random.Random(0), 0
    while spent < n_trials:
        task = max(tasks, key=gain)
        rows = database.execute("SELECT trace FROM record WHERE workload = ?", [task.workload])
        proposed = propose(task, {trace for (trace,) in rows}, best(database, task)[0], rng)
        for trace in proposed:
            run_secs, error = workers.run(task, trace)
            with database:  # every trial is kept, whenever the program is stopped
                database.execute(
                    "INSERT INTO record (workload, trace, run_secs, error) VALUES (?, ?, ?, ?)",
                    [task.workload, trace, run_secs, error],
                )
        task.best_secs.append(best(database, task)[1])
        spent += max(len(proposed), 1)
        name, best_us = task.functions[0], task.best_secs[-1] * 1e6
        print(f"{spent:4d} trials  {best_us:9.1f} us  x{task.weight}  {name}")


def best(database: sqlite3.Connection, task: Task) -> tuple[str | None, float]:
    """Return the trace and the seconds of a task's best record; None and inf without one."""
    rows = database.execute(
        "SELECT trace, run_secs FROM record WHERE workload = ? AND run_secs > 0 ORDER BY run_secs",
        [task.workload],
    )
    return rows.fetchone() or (None, math.inf)


def build(
    network: tvm.IRModule, tasks: list[Task], database: sqlite3.Connection
) -> relax.VirtualMachine:
    """Apply the best record of each task, and compile the network."""
    module = tvm.IRModule(dict(network.functions.items()))
    for task in tasks:
        trace, _ = best(database, task)
        if trace is not None:
            scheduled = replay(task.module, trace).mod["main"]
            for name in task.functions:
                module.update_func(
                    network.get_global_var(name), scheduled.with_attr("global_symbol", name)
                )
    return relax.VirtualMachine(tvm.compile(module, TARGET), tvm.cpu())


def time_run(library: relax.VirtualMachine, image: tvm.runtime.Tensor) -> float:
    """Return the seconds of one inference."""
    return float(library.time_evaluator("main", tvm.cpu(), repeat=5, number=10)(image).min)


def main() -> None:
    """Tune the network, and print what it gained."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=64, help="trials to spend in this run")
    parser.add_argument("--database", default="minituner.sqlite", help="records of all runs")
    options = parser.parse_args()
    network = lower(model := make_model())
    tasks = split(network)
    with sqlite3.connect(options.database) as database:
        database.execute(SCHEMA)
        image = np.random.default_rng(1).standard_normal((1, 3, 16, 16)).astype("float32")
        untuned = build(network, [], database)
        workers = Workers()
        try:
            tune(tasks, options.trials, database, workers)
        finally:
            workers.stop()
        tuned = build(network, tasks, database)
    (expected,) = onnx.reference.ReferenceEvaluator(model).run(None, {"image": image})
    output = tuned["main"](tvm.runtime.tensor(image)).numpy()
    np.testing.assert_allclose(output, expected, rtol=1e-3, atol=1e-4)
    before, after = (time_run(library, tvm.runtime.tensor(image)) for library in (untuned, tuned))
    print(f"untuned {before * 1e3:.3f} ms, tuned {after * 1e3:.3f} ms, equal outputs")


if __name__ == "__main__":
    main()
