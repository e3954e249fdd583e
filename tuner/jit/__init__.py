"""Compilation at run time: the backend ``tuner`` of ``torch.compile``, and jitted functions.

Only the modules whose names begin with ``torch_`` import torch, and only torch functions import
them. TVM is imported when the first library is loaded.
"""
