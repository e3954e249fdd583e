"""Rewrites of a Relax graph that lead to fewer and faster kernels, one module each."""
