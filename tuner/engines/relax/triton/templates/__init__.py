"""Templates of Triton's kernels: products, attention, rows, windows."""
