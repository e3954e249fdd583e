"""Chooses which task gets the next round of trials: arithmetic on arrays, nothing else."""
