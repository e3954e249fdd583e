"""The run-time cache: functions that are compiled at their first call with each signature.

Only the modules whose names begin with ``torch_`` import torch, and only torch functions import
them. TVM is imported when the first library is loaded.
"""
