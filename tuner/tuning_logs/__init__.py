"""Tuning logs of other tools and of this one: import, export and distillation."""
