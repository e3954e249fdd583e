"""Replacement of If, Loop and Scan."""
