"""Converters of functions of torch."""
