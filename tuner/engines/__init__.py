"""Engines: the only code that knows a compiler."""
