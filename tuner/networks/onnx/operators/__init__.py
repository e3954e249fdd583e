"""Replacement of operators of the standard that importers lack or misread."""
