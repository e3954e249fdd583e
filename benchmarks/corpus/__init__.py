"""The corpus: real networks from public packages, which the tuner loads, builds and is timed on."""
