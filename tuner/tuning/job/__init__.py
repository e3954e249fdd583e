"""A tuned job: its opening, limits, leases, attempts and picks."""
