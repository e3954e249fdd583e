"""The files of a library: objects of its subgraphs, linked, with weights and a manifest."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from records.bests import BestTrace
from records.tasks import WeightedTask
from tuner.build_cache.entries import Entry
from tuner.build_cache.keys import Key
from tuner.compile.object_compiler import ObjectCompiler
from tuner.compile.subgraphs import BuildStep, SubgraphObjects, subgraph_request
from tuner.engines.base import LinkRequest, LinkResult, variant_of
from tuner.engines.runtime import call_timers, thread_pool
from tuner.errors import MalformedAnswer, WorkError
from tuner.jobs.models.model_loading import check_file
from tuner.jobs.preparation import Prepared
from tuner.library import manifest as manifests
from tuner.library.buckets import Buckets
from tuner.workers.pool import CallTimeout

KIND = "library"
_LINK_TIMEOUT_SECS = 1800.0
_TAIL_TIMEOUT_SECS = 600.0


@dataclass
class LibraryFiles:
    """Maker of one library's files, as an entry of the build cache.

    Attributes:
        compiler: Compiler of the subgraphs' objects.
        networks: The model, once for each set of input shapes.
        best: Best record of each workload that has one.
        buckets: Dynamic dimensions whose sizes the networks are; None for fixed shapes.
        steps: Origin of each object once the files are made; empty before.
    """

    compiler: ObjectCompiler
    networks: Sequence[Prepared]
    best: Mapping[str, BestTrace]
    buckets: Buckets | None = None
    steps: tuple[BuildStep, ...] = ()

    @property
    def key(self) -> Key:
        """Key of the library: everything that its bytes depend on."""
        target = self.compiler.target
        return Key(
            KIND,
            {
                "networks": [network.model.sha256 for network in self.networks],
                "engine": self._engine,
                "pipeline": target.pipeline,
                "target": target.spec,
                "device": dict(target.device),
                "compiler": dict(target.compiler),
                "traces": {
                    workload: self.best[workload].trace_hash if workload in self.best else None
                    for workload in self._tasks
                },
                "manifest": manifests.VERSION,
                "timers": call_timers.VERSION,
                "threads": thread_pool.VERSION,
                # Absent without them, so that earlier entries are found.
                **({"buckets": asdict(self.buckets)} if self.buckets else {}),
                **({"memory": manifests.MEMORY_VERSION} if target.kind == "cuda" else {}),
            },
            self.networks[0].shared_name,
        )

    def make(self, folder: Path) -> Mapping[str, Any]:
        """Fill the folder of a cache entry; return the facts that the entry stores.

        Raises:
            WorkError: If a subgraph cannot be compiled, or the library cannot be linked.
        """
        started = time.perf_counter()
        requests = [
            subgraph_request(task, self.best.get(workload))
            for workload, task in self._tasks.items()
        ]
        for network in self.networks:
            check_file(network.model)
        objects = self.compiler.objects(requests)
        try:
            result = self._link(objects, folder)
            _check_outputs(self.networks, result)
            manifests.write(folder, self._describe(objects, result, folder))
        finally:
            objects.close()
        self.steps = objects.steps
        reused_secs = sum(step.secs for step in objects.steps if step.hit)
        return {"secs": time.perf_counter() - started + reused_secs}

    @property
    def _tasks(self) -> dict[str, WeightedTask]:
        return tasks_of(self.networks)

    @property
    def _engine(self) -> str:
        return self.compiler.context.settings.engine

    def _link(self, objects: SubgraphObjects, folder: Path) -> LinkResult:
        exchange = self.compiler.worker.exchange
        with exchange.new_input() as given, exchange.new_output() as made:
            request = LinkRequest(
                models=tuple(network.model.file for network in self.networks),
                target=self.compiler.target.spec,
                objects=objects.write_into(given),
                out=str(made.path),
            )
            try:
                result: LinkResult = self.compiler.worker.call(
                    self._engine, "link_network", request, timeout_secs=_LINK_TIMEOUT_SECS
                )
            except CallTimeout as error:
                raise WorkError(f"linking took longer than {_LINK_TIMEOUT_SECS:.0f} s") from error
            if manifests.MANIFEST in result.files:
                raise MalformedAnswer("linking named the manifest, which is written here")
            tails = self._write_tails(made.path)
            made.take(folder, {*result.files, *tails})
        return replace(result, files=tuple(dict.fromkeys((*result.files, *tails))))

    def _write_tails(self, folder: Path) -> list[str]:
        """Have the worker write the operators that run after each program; return their files."""
        names = _tail_names(self.networks)
        for network, name in zip(self.networks, names, strict=True):
            if name:
                self.compiler.worker.call(
                    "tuner.networks.worker",
                    "write_tail",
                    network.model.file,
                    str(folder / name),
                    timeout_secs=_TAIL_TIMEOUT_SECS,
                )
        return [name for name in names if name]

    def _describe(
        self, objects: SubgraphObjects, result: LinkResult, folder: Path
    ) -> manifests.Manifest:
        first, target = self.networks[0], self.compiler.target
        return manifests.Manifest(
            model_name=first.shared_name,
            target=target.spec,
            device=dict(target.device),
            compiler=dict(target.compiler),
            outputs=tuple(first.model.outputs),
            programs=tuple(
                manifests.Program(
                    entry=program.entry,
                    network=network.model.sha256,
                    inputs=dict(network.model.file.inputs),
                    weights=program.weights,
                    calls=dict(program.calls),
                    outputs=program.outputs,
                    values=dict(network.model.values),
                    tail=tail,
                    tail_outputs=tuple(network.model.outputs.values()) if tail else (),
                    limits=network.model.limits,
                    memory=program.memory,
                    plan=program.plan,
                )
                for network, program, tail in zip(
                    self.networks, result.programs, _tail_names(self.networks), strict=True
                )
            ),
            weights=result.weights,
            subgraphs=tuple(
                self._subgraph(task, objects.entries[workload], result)
                for workload, task in self._tasks.items()
            ),
            files={name: manifests.sha256_of(folder / name) for name in result.files},
            engine=self._engine,
            source=first.model.source,
            kernel_calls=result.calls,
            pipeline=target.pipeline,
            buckets=self.buckets,
            tail=first.model.tail,
            machine=target.machine,
            features=tuple(target.features),
        )

    def _subgraph(
        self, task: WeightedTask, entry: Entry, result: LinkResult
    ) -> manifests.SubgraphEntry:
        best = self.best.get(task.workload_hash)
        linking = entry.info["linking"]
        return manifests.SubgraphEntry(
            name=task.name,
            workload=task.workload_hash,
            n_calls=sum(program.calls.get(task.workload_hash, 0) for program in result.programs),
            record=None if best is None else best.record_id,
            latency=None if best is None else best.latency,
            trace=None if best is None else best.trace_hash,
            entry=entry.digest,
            objects={name: file.sha256 for name, file in entry.files.items()},
            variant=linking.get("variant", "" if best is None else variant_of(best.trace)),
            n_parallel=linking.get("n_parallel"),
        )


def tasks_of(networks: Sequence[Prepared]) -> dict[str, WeightedTask]:
    """Return the tasks of all networks by workload hash."""
    return {task.workload_hash: task for network in networks for task in network.tasks}


def _tail_names(networks: Sequence[Prepared]) -> list[str]:
    """Return the name of the file of each network's tail; empty without one."""
    return [
        "" if network.model.tail is None else f"tail-{number}.onnx" if number else "tail.onnx"
        for number, network in enumerate(networks)
    ]


def _check_outputs(networks: Sequence[Prepared], result: LinkResult) -> None:
    for network, program in zip(networks, result.programs, strict=True):
        model = network.model
        n_outputs = len(model.outputs if model.tail is None else model.tail.returned)
        if len(program.outputs) != n_outputs:
            raise WorkError(
                f"the compiled network has {len(program.outputs)} outputs, "
                f"but the model has {n_outputs}"
            )
