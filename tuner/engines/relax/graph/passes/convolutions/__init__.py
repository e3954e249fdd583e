"""Rewrites of convolutions and the operators around them."""
