"""Loading of submitted jobs, within limits on memory and time."""
