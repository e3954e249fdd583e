"""A flight: libraries compared with torch in a few minutes on a machine with a GPU."""
