"""Check of the layouts that TVM's post-processor gives to weights.

The post-processor derives the layout of a weight from one statement that reads it. Where a weight
is read at several places at once, as the indices of GatherND are, the layout that follows from the
first of them has no place for some elements.
"""

from collections.abc import Sequence

import tvm
from tvm.s_tir import SBlock, Schedule
from tvm.tirx import IndexMap

from tuner.engines.relax.ir import ir_checks

# Attribute that TVM's AttachAttrLayoutFreeBuffers gives to kernels.
LAYOUT_FREE = "layout_free_buffers"
#: Annotation of blocks that compute with weights only, once for a library.
PACKS = "meta_schedule.layout_rewrite_preproc"


def lossy_arguments(module: tvm.IRModule) -> list[int]:
    """Return the indices of the arguments whose packed form does not hold each element once.

    Args:
        module: Scheduled and post-processed kernel.
    """
    function = module["main"]
    if not ir_checks.is_annotated(function, PACKS):
        return []
    schedule = Schedule(module)
    root = schedule.get_sblock("root")
    blocks = [schedule.get(block) for block in schedule.get_child_blocks(root)]
    lossy = [
        block.reads[0].source
        for block in blocks
        if PACKS in block.annotations and not _is_bijective(block)
    ]
    return [
        index
        for index, param in enumerate(function.params)
        if any(buffer.same_as(param) for buffer in lossy)
    ]


def keep_layouts(module: tvm.IRModule, arguments: Sequence[int] | None = None) -> tvm.IRModule:
    """Return a workload with some arguments not packed; none by default."""
    function = module["main"]
    free = (function.attrs or {}).get(LAYOUT_FREE, ())
    kept = [int(i) for i in free if arguments is not None and int(i) not in arguments]
    return tvm.IRModule({"main": function.with_attr(LAYOUT_FREE, kept)})


def _is_bijective(block: SBlock) -> bool:
    variables = [axis.var for axis in block.iter_vars]
    shape = [axis.dom.extent for axis in block.iter_vars]
    try:
        IndexMap(variables, list(block.body.indices), None).inverse(shape)
    except (ValueError, RuntimeError):  # TVM's, where there is no inverse
        return False
    return True
