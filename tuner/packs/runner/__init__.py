"""The program inside a pack, which measures its candidates."""
