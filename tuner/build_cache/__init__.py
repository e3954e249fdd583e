"""Content-addressed cache of compiled objects and libraries."""
