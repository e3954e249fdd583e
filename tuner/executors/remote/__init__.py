"""Devices that measure over HTTPS, for a service."""
