"""Exported programs of torch: archives, inputs, limits, conversion to ONNX."""
