"""Verification of kernels: inputs that reveal errors, expected outputs, and their comparison."""
