"""Runners, which time kernels on one device each."""
