"""Database reads for tables, pages and reports, returned as shapes of tuner.schemas."""
