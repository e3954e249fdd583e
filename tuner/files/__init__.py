"""Files and folders that appear whole, belong to one process, or end with it."""
