"""``tuner records``: listing, moving and measuring records again."""
