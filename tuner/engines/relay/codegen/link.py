"""Build of a network into a library: kernels, graph and weights for each set of input shapes."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tvm
from tvm import relay
from tvm.auto_scheduler import ApplyHistoryBest, LayoutRewriteOption
from tvm.auto_scheduler.measure_record import load_record_from_string
from tvm.auto_scheduler.relay_integration import TracingEnvironment, TracingMode

from tuner.engines.base import LinkedObject, LinkedProgram, LinkRequest, LinkResult, ModelFile
from tuner.engines.linker import link_shared
from tuner.engines.relay.codegen import extremes
from tuner.engines.relay.codegen.objects import RECORD
from tuner.engines.relay.importer import import_model
from tuner.engines.relay.settings import OPT_LEVEL, PASS_CONFIG
from tuner.engines.relay.targets import make_target
from tuner.engines.runtime.thread_pool import compile_pool
from tuner.errors import WorkError
from tuner.library.manifest import TensorSpec


class Records(ApplyHistoryBest):  # type: ignore[misc]  # TVM has no types
    """The records of a network, by the key of their workload.

    Relay queries twice: when it converts weights to the layout that a kernel reads, which changes
    the workload, and when it compiles the kernel. Changed workloads keep their old key here.

    Attributes:
        hits: Keys of workloads whose record was applied.
    """

    def __init__(self, lines: list[str]) -> None:
        records = [load_record_from_string(line) for line in lines]
        self._plain = {
            str(inputs.task.workload_key)
            for inputs, _ in records
            if int(inputs.task.layout_rewrite_option) == LayoutRewriteOption.NO_REWRITE
        }
        self._origins: dict[str, str] = {}
        self._queried = ""
        self._functions: dict[str, str] = {}
        self.hits: set[str] = set()
        super().__init__(records)

    def query(
        self,
        target: Any,
        workload_key: str,
        has_complex_op: bool,
        dag: Any,  # noqa: ARG002
        func_name: str,
    ) -> Any:
        """Return the state of a workload; None leaves it to TVM's own schedule."""
        key = self._origins.get(workload_key, workload_key)
        state = self._query_inside(target, workload_key, func_name)
        environment = TracingEnvironment.current
        if environment is None:
            if has_complex_op:
                self._functions[func_name] = key
            if state is not None:
                self.hits.add(key)
        elif environment.tracing_mode == TracingMode.PREPARE_LAYOUT_REWRITE:
            self._queried = key
            if key in self._plain:
                return None
        return state

    def update(self, target: Any, workload_key: str, state: Any) -> None:
        """Note the new key of the workload that was queried last."""
        self._origins[workload_key] = self._queried
        super().update(target, workload_key, state)

    def calls_in(self, graph: Mapping[str, Any]) -> Counter[str]:
        """Count the calls of subgraphs in a built graph, by the key of their workload."""
        names = (node.get("attrs", {}).get("func_name", "") for node in graph["nodes"])
        return Counter(self._functions[name] for name in names if name in self._functions)


def link_network(request: LinkRequest) -> LinkResult:
    """Build a network; see :class:`Engine`."""
    out = Path(request.out)
    programs: list[LinkedProgram] = []
    files: list[str] = []
    for number, model in enumerate(request.models):
        entry = "lib" if number == 0 else f"lib_{number}"
        built, records = _build(model, request)
        graph = json.loads(built.get_graph_json())
        _write(built, out, entry)
        files += files_of(entry)
        calls = _calls(records, graph, request.objects)
        programs.append(LinkedProgram(entry, (), calls, _outputs(graph)))
    return LinkResult(tuple(files), tuple(programs), ())


def _outputs(graph: Mapping[str, Any]) -> tuple[TensorSpec, ...]:
    """Return shape and dtype of the outputs of a built graph."""
    (_, shapes), (_, dtypes) = graph["attrs"]["shape"], graph["attrs"]["dltype"]
    starts = graph["node_row_ptr"]
    places = [starts[node] + number for node, number, *_ in graph["heads"]]
    return tuple((tuple(shapes[place]), str(dtypes[place])) for place in places)


def files_of(entry: str) -> tuple[str, str, str]:
    """Name the files of a program: its kernels, its graph and its weights."""
    return f"{entry}.so", f"{entry}.graph.json", f"{entry}.weights"


def _build(model: ModelFile, request: LinkRequest) -> tuple[Any, Records]:
    records = Records([text for folder in request.objects.values() if (text := _record_of(folder))])
    module = import_model(model)
    config = {**PASS_CONFIG, "tir.add_lower_pass": extremes.PASSES}
    with records, tvm.transform.PassContext(opt_level=OPT_LEVEL, config=config):
        return relay.build(module, target=make_target(request.target)), records


def _record_of(linked: LinkedObject) -> str:
    """Return the record of a subgraph; empty if it has none."""
    return (Path(linked.folder) / RECORD).read_text()


def _calls(
    records: Records, graph: Mapping[str, Any], objects: Mapping[str, LinkedObject]
) -> dict[str, int]:
    """Return the kernel calls of a network by workload.

    Raises:
        WorkError: If Relay built a subgraph that is not a task of the network, or ignored a record;
            the manifest would then not describe the library.
    """
    workloads = {str(linked.info["key"]): workload for workload, linked in objects.items()}
    calls = {}
    for key, n_calls in records.calls_in(graph).items():
        if key not in workloads:
            raise WorkError(f"no object of subgraph {key} was given")
        workload = workloads[key]
        if _record_of(objects[workload]) and key not in records.hits:
            raise WorkError(f"the record of subgraph {workload} was not applied")
        calls[workload] = n_calls
    return calls


def _write(built: Any, out: Path, entry: str) -> None:
    library, graph, weights = files_of(entry)

    def finish(path: str, files: list[str], **_options: Any) -> None:
        objects = [Path(file) for file in files]
        threads = compile_pool(objects, out)
        link_shared([*objects, *threads], Path(path))
        for file in threads:
            file.unlink()

    built.get_lib().export_library(str(out / library), fcompile=finish)
    (out / graph).write_text(built.get_graph_json())
    (out / weights).write_bytes(tvm.runtime.save_param_dict(built.get_params()))
