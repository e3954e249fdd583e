"""Compilation of networks into libraries, and what checks them: timing and recompilation."""
