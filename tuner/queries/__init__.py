"""Database reads for tables, pages and reports."""
