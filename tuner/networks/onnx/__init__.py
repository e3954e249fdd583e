"""ONNX models: reading, repair, cleaning."""
