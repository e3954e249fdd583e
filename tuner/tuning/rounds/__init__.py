"""Rounds, finals, and repeated measurements of best records."""
