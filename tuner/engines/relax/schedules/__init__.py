"""Schedules: one contract, and one table of the rules."""
