"""Application of records while Relay builds a network, with a count of the applied ones."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tvm.auto_scheduler import ApplyHistoryBest, LayoutRewriteOption
from tvm.auto_scheduler.measure_record import load_record_from_string
from tvm.auto_scheduler.relay_integration import TracingEnvironment, TracingMode


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
