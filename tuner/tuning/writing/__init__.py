"""Writing of records and status to the database."""
