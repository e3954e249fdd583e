"""Kernels that Triton compiles for tensor cores, printed from the definition of a workload."""
