"""Targets: their kinds, their resolution, and the devices that run their code."""
