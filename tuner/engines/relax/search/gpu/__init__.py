"""Limits of a GPU in a search: resources of a schedule, sampling within them."""
