"""Assignment of memory layouts to the tensors of a network."""
