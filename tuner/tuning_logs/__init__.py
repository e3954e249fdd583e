"""Logs of other tools, and ours: read into the database, written out of it, distilled."""
