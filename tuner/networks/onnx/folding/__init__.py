"""Folding of constants: scales, lengths, weights, fixed inputs."""
