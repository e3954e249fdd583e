"""Blocks and expressions of a workload as source code of Triton."""
