"""Inputs of ONNX models: plausible values, and limits."""
