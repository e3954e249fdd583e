"""Processes that run the libraries of this engine."""
