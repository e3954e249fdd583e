"""Interpreter of programs, which gives expected outputs with error bounds."""
