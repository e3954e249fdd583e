"""Comparison of the devices of one target by the time of one kernel."""
