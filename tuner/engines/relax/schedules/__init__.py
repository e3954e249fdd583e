"""Schedules: one contract, and one table of those that follow from structure and target."""
