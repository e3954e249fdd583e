"""Tables, progress and JSON for the command line."""
