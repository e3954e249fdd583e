"""Search: the candidates of a round, from several sources."""
