"""Workloads and their IR: canonical text, checks, types, traces."""
