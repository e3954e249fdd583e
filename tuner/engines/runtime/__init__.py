"""Observation of running kernels: timing, clock, caches, peaks, profile."""
