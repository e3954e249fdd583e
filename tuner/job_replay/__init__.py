"""Replay of recorded jobs under other allocators."""
