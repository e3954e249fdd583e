"""Compilation of scheduled kernels to objects, and their linking to libraries."""
