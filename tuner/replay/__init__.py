"""Recorded jobs, replayed under other allocators."""
