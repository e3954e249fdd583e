"""Rewrites of matrix products, among them products of quantised numbers."""
