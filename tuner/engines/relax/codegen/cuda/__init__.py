"""Code of GPUs: sources, binaries and their launches."""
