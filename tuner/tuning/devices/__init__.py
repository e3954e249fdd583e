"""Devices of a coordinator: which accept rounds, their heartbeat, peaks and calibration."""
