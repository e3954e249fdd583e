"""Detection of devices whose timings disagree."""
