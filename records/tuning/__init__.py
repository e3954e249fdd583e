"""Rows of running jobs: rounds, attempts, events, totals, cost models, calibrations."""
