"""Commands carried out by a tuner server."""
