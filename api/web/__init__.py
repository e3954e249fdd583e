"""The dashboard: pages for people, rendered on the server, live where there is JavaScript."""
