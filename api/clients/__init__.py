"""Clients of the service: authentication, access, and what one client may have at a time."""
