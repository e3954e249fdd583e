"""Build of a network into a library: kernels, graph and weights for each set of input shapes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tvm
from tvm import relay

from tuner.engines.base import LinkedObject, LinkedProgram, LinkRequest, LinkResult, ModelFile
from tuner.engines.linker import link_shared
from tuner.engines.relay.codegen import extremes
from tuner.engines.relay.codegen.apply_records import Records
from tuner.engines.relay.codegen.objects import RECORD
from tuner.engines.relay.importer import import_model
from tuner.engines.relay.settings import OPT_LEVEL, PASS_CONFIG
from tuner.engines.relay.targets import make_target
from tuner.engines.runtime.thread_pool import compile_pool
from tuner.errors import WorkError


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
        programs.append(LinkedProgram(entry, (), calls, len(graph["heads"])))
    return LinkResult(tuple(files), tuple(programs), (), ())


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
