"""Devices under measurement: inventory, locks, calibration, runners."""
