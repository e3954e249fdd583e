"""Executors, which run worker functions on this machine or on a Ray cluster."""
