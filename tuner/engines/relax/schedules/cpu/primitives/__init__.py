"""Primitives that schedules for CPUs share: blocks, operands, tiles, vectors."""
