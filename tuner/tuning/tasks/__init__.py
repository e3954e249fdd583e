"""States of tasks between rounds, and the cost models of targets."""
