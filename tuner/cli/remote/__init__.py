"""Commands as a service carries them out."""
