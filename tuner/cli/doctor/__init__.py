"""Checks of a machine, each with a fix.

A check never raises: an error is its result, and the other checks still run. Checks import no
TVM into this process; a worker describes the target.
"""
