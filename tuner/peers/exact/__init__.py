"""Peers that compute in float64: the reference of comparisons."""
