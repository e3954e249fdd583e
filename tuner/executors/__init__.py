"""Executors, which run worker functions on this machine, and on others that serve it."""
