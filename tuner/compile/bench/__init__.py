"""Benchmarks of libraries: runs in turns with peers, comparison of outputs, limits for CI."""
