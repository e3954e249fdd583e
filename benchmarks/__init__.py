"""Benchmarks against goals and peers; each module prints one JSON line."""
