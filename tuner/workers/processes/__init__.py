"""Processes of workers: their command lines, start, pause and end."""
