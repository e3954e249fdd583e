"""Output of the commands of the build cache."""
