"""Tensor cores that a workload can use on a GPU, and MetaSchedule's rules for them.

TVM's own list of rules names every intrinsic it knows, whatever the workload computes, and
schedules workloads that fit tensor cores for nothing else. Here they have a separate space next to
that of the CUDA cores, with the intrinsics of the workload's dtypes alone.

TVM 0.27 lacks tf32 (its code generation has no such fragments; float32 stays float32),
float64, float8 (its tiling rule has no loads for it). Its second rule, for mma instructions, is
left out: of 24 programs by it, TVM's own check refused all.
"""

import re

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule.schedule_rule import (
    MultiLevelTilingTensorCore,
    ReuseType,
    ScheduleRule,
)
from tvm.target import Target

from tuner.engines.relax.schedules.gpu import intrinsics

Group = dict[str, str]
_Row = tuple[str, str, str, str, int]

# Dtypes of operands and accumulator, their names in intrinsics, and the first architecture with
# such tensor cores (CUDA C++ Programming Guide, "Warp Matrix Functions").
_WMMA: tuple[_Row, ...] = (
    ("float16", "float32", "f16", "f32", 70),
    ("float16", "float16", "f16", "f16", 70),
    ("int8", "int32", "s8", "s32", 75),
    ("bfloat16", "float32", "bf16", "f32", 80),
)


def load_for(module: tvm.IRModule, target: Target) -> None:
    """Register the intrinsics that a default schedule of a workload may name."""
    operands = {operand for operand, _ in _products(module)}
    for row in _available(target):
        if row[0] in operands:
            _load(row)


def rules_for(module: tvm.IRModule, target: Target) -> list[list[ScheduleRule]]:
    """Return the rules of each space of a workload: tensor cores, then CUDA cores."""
    custom, *others = ScheduleRule.create("cuda")
    return [[custom, tiling, *others] for tiling in _tilings(module, target)] + [[custom, *others]]


def _tilings(module: tvm.IRModule, target: Target) -> list[ScheduleRule]:
    products = _products(module)
    rows = [row for row in _available(target) if row[:2] in products]
    for row in rows:
        _load(row)
    # The default settings of TVM (schedule_rule.cc, ``DefaultCUDATensorCore``).
    return [
        MultiLevelTilingTensorCore(
            _groups(row),
            structure="SSSRRSRS",
            tile_binds=["blockIdx.y", "blockIdx.x", "threadIdx.y"],
            max_innermost_factor=4,
            vector_load_lens=[1, 2, 3, 4, 8, 16],
            reuse_read=ReuseType("must", [4], "shared.dyn"),
            reuse_write=ReuseType("must", [2], _store_scope(row)),
            use_software_pipeline=False,
        )
        for row in rows
    ]


def _available(target: Target) -> list[_Row]:
    match = re.fullmatch(r"sm_(\d+)[a-z]?", str(target.attrs.get("arch", "")))
    return [row for row in _WMMA if match and int(match[1]) >= row[-1]]


def _products(module: tvm.IRModule) -> set[tuple[str, str]]:
    """Return the dtypes of operands and sum of every reduction over two operands of one dtype."""
    dtypes = set()
    schedule = Schedule(module)
    for block in map(schedule.get, schedule.get_child_blocks(schedule.get_sblock("root"))):
        operands = {str(region.source.dtype) for region in block.reads}
        if block.init is not None and len(block.reads) == 2 and len(operands) == 1:
            dtypes.add((operands.pop(), str(block.writes[0].source.dtype)))
    return dtypes


def _load(row: _Row) -> None:
    intrinsics.load(name for group in _groups(row) for name in group.values())


def _groups(row: _Row) -> list[Group]:
    _, _, operand, total, _ = row
    shape = "16x16x16"
    store = _store_scope(row).replace(".", "_")
    return [
        {
            "init": f"wmma_fill_{shape}_{total}",
            "load_a": f"wmma_load_{shape}_{operand}_a_shared_dyn",
            "load_b": f"wmma_load_{shape}_{operand}_b{transposed}_shared_dyn",
            "compute": f"wmma_sync_{shape}_{operand}{operand}{total}{transposed}",
            "store": f"wmma_store_{shape}_{total}_{store}",
        }
        for transposed in ("", "_trans")
    ]


def _store_scope(row: _Row) -> str:
    """Return the memory scope of a sum, separate from operands of another dtype.

    TVM 0.27 lays dynamic shared buffers over each other, and refuses pointers to the part of one
    as another's dtype ("tvm_access_ptr element type must match the source buffer").
    """
    return "shared.dyn" if row[0] == row[1] else "shared"
