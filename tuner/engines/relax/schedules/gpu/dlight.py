"""DLight's rules, which schedule any kernel for a GPU."""

from collections.abc import Iterable

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import Trace
from tvm.tirx import PrimFunc

from tuner.engines.relax.schedules.base import ScheduleRule, Workload
from tuner.engines.relax.schedules.gpu import tensor_cores


def _rule(name: str) -> ScheduleRule:
    """Return a rule of DLight by the name of its class."""

    def ranked(workload: Workload, function: PrimFunc) -> Iterable[Trace]:
        from tvm.s_tir import dlight

        tensor_cores.load_for(workload.module, workload.target)
        rule = getattr(dlight.gpu, name)()
        try:
            with workload.target:
                result = rule.apply(function, workload.target, False)
        except Exception:  # a rule raises on kernels that it does not cover
            return []
        schedules = [result] if isinstance(result, Schedule) else result or []
        return [each.trace for each in schedules]

    return ranked


#: Rules by name, the most special first.
RULES = {
    "matmul": _rule("Matmul"),
    "gemv": _rule("GEMV"),
    "reduction": _rule("Reduction"),
    "general-reduction": _rule("GeneralReduction"),
    "fallback": _rule("Fallback"),
}
