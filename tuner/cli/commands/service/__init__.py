"""Commands of a service: its processes, its tokens and its database."""
