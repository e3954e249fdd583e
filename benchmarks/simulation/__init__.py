"""Simulated devices and time for the real coordinator on a real database."""
