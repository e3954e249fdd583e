"""Owners of a service: their tokens, what they may see, and what they hold."""
