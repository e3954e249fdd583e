"""Choice of the task that gets the next round of trials: pure arithmetic on arrays."""
