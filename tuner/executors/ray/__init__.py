"""Builders and devices on a Ray cluster."""
