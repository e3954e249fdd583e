"""Networks of the flight, their sizes and their weights."""
