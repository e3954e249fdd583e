"""Compilation of Triton's kernels: binaries, their facts, and code that launches them."""
