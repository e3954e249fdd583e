"""Compilation of candidates and networks."""
