"""Tuning requests: their options, submission and preparation."""
