"""The tuning loop: pick, round, record."""
