"""Marks of tests that compile for GPUs, with or without one."""

import pytest

from tuner.engines.relax.codegen.cuda import nvrtc
from tuner.engines.relax.triton.compilation import compiler

needs_nvrtc = pytest.mark.skipif(
    nvrtc.describe_compiler()["nvrtc"] is None, reason="NVRTC is not installed: the cuda extra"
)
needs_triton = pytest.mark.skipif(
    not compiler.is_installed(), reason="the triton extra is not installed"
)
