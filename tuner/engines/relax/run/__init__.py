"""Runs of candidates on a device: references, comparison, timing."""
