"""Prepare a process for TVM 0.19: import this before anything of TVM.

Tuned configurations of other people's machines are not asked for, as each of those questions
waits for a download. And Relay reads ONNX by a table that the package ``onnx`` dropped in 1.19.
"""

import os
import sys
import warnings
from types import ModuleType

from onnx import helper

os.environ["TOPHUB_LOCATION"] = "NONE"


def _restore_onnx_mapping() -> None:
    mapping = ModuleType("onnx.mapping")
    table = {kind: helper.tensor_dtype_to_np_dtype(kind) for kind in helper.get_all_tensor_dtypes()}
    mapping.TENSOR_TYPE_TO_NP_TYPE = table  # type: ignore[attr-defined]
    sys.modules.setdefault("onnx.mapping", mapping)


_restore_onnx_mapping()
with warnings.catch_warnings():
    # It is written for the NumPy and the Python of its days.
    warnings.simplefilter("ignore")
    import tvm  # noqa: F401
