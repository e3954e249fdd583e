"""Engines: the only packages that use a compiler."""
