"""Import of TVM without torch, for every module of this engine in a worker.

TVM's foreign function interface imports torch wherever it is installed, for arguments that are
torch's tensors: 1.4 s and 200 MB in every worker, none of which passes any. A worker that loads
a torch program imports torch when it does.
"""

import sys

if "torch" not in sys.modules:
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        import tvm  # noqa: F401
    finally:
        del sys.modules["torch"]
