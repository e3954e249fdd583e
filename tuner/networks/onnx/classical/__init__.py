"""Replacement of the operators of classical machine learning."""
