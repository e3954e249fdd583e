"""Packs: compiled candidates in one file, measured where a GPU is, imported where they came from.

:mod:`tuner.packs.runner` and :mod:`tuner.packs.result_lines` travel inside of a pack. They need
Python 3.10, NumPy and the driver of the GPU alone.
"""
