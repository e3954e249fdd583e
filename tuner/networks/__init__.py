"""Reads a model file, or builds a named network, and fixes every shape in it; knows no TVM."""
