"""Load of a service."""
