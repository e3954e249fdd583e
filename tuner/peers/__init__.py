"""Other runtimes to compare a library with."""
