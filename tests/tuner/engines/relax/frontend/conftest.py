"""Exports of torch programs in one process share the tables that torch makes for each."""

from collections.abc import Iterator
from copy import copy
from functools import cache
from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def tables() -> Iterator[None]:
    """Read the operators of torch, and their functions of ONNX, once: a second for each export."""
    # Processes that run other tests would import it to collect these, for seconds.
    from torch._export import utils
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    read = cache(ONNXRegistry.from_torchlib)

    def read_again(*args: Any, **options: Any) -> Any:
        registry = copy(read(*args, **options))
        registry.functions = {target: [*each] for target, each in registry.functions.items()}
        return registry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(read_again))
        patch.setattr(utils, "_materialize_cpp_cia_ops", cache(utils._materialize_cpp_cia_ops))
        yield
