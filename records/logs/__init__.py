"""Logs of measure records: export, import, and records from elsewhere."""
