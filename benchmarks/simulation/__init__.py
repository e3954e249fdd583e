"""A fleet on paper: the real coordinator on a real database, devices and time simulated."""
