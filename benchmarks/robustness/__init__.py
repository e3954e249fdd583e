"""Sweeps and attacks: operators, damaged models, wrong kernels, faults of a service."""
