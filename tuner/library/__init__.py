"""Compiled libraries on disk."""
