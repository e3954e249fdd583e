"""The records database: networks, jobs, picks and every measurement."""
