"""Rewrites of a network from the imported module to fused, unscheduled kernels."""
