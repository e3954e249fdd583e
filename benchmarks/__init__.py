"""Side-by-side runs against peers; each module prints one JSON line."""
