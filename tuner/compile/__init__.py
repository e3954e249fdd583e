"""Compilation of whole networks into libraries."""
