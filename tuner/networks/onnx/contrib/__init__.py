"""Replacement of operators of ONNX Runtime, of quantised ones, and of fused attention."""
