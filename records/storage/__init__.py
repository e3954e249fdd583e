"""Storage: connections to SQLite and PostgreSQL, statements on many rows, backups, purges."""
