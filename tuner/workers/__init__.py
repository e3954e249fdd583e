"""Worker processes and the calls they serve."""
