"""Profiles of libraries: the time of every kernel inside the running network, and a verdict."""
