"""Definitions of operators whose definition by TVM is slow, wrong or not schedulable."""
