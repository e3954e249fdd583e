"""How devices are timed."""
