"""The commands of the command line: one module each, in rooms by what they are about."""
