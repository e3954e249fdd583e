"""Every measurement ever made, in a database."""
