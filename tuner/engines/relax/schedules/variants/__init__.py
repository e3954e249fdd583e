"""Variants: other programs for the outputs of a workload, which compete with it."""
