"""Output of the commands of records."""
