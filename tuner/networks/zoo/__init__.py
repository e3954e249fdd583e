"""Builds well-known networks from their names, with random weights and no download.

The architectures are those of TVM's former ``relay.testing``, because the published tuning results
(the 24 tasks of ResNet-18, for one) come from them.
"""
