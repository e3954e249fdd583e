"""Allocators compared on recorded latency curves."""
