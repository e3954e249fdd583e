"""Preparation of a process for TVM 0.19; imported before any module of TVM.

It switches off TopHub, whose every query waits for a download, and restores a table of ``onnx``
that Relay's importer reads and ``onnx`` 1.19 dropped.
"""

import os
import sys
import warnings
from types import ModuleType

from onnx import helper

os.environ["TOPHUB_LOCATION"] = "NONE"


mapping = ModuleType("onnx.mapping")
mapping.TENSOR_TYPE_TO_NP_TYPE = {  # type: ignore[attr-defined]
    kind: helper.tensor_dtype_to_np_dtype(kind) for kind in helper.get_all_tensor_dtypes()
}
sys.modules.setdefault("onnx.mapping", mapping)
with warnings.catch_warnings():
    # TVM 0.19 was written for older versions of NumPy and Python.
    warnings.simplefilter("ignore")
    import tvm  # noqa: F401
