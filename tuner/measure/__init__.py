"""Measurement of candidates: build, verify, time."""
