"""Well-known networks by name, with random weights and without downloads.

The architectures are those of TVM's former ``relay.testing``, which published tuning results (for
example the 24 tasks of ResNet-18) are based on.
"""
