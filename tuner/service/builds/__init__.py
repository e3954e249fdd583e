"""Builds that a service makes for its clients, and their archives."""
