"""Jitted functions and modules of torch: signatures, tracing, changes of weights."""
