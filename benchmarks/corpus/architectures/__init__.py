"""Modules that the corpus exports: those of public packages, and small ones of its own."""
