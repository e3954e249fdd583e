"""Assignment of memory layouts to the tensors of a network."""

from tuner.engines.relax.graph.layout.assignment import assign_layouts

__all__ = ["assign_layouts"]
