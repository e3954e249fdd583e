"""CUDA's runtime and driver by ctypes: calls, events, graphs."""
