"""Where worker functions run."""
