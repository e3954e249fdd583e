"""Confinement of worker processes: files, memory, cores, environment."""
