"""``tuner cache``: listing and upkeep of the build cache."""
