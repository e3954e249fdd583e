"""The run-time cache: functions that are compiled when they are called, once a signature.

Nothing here imports torch but the modules whose names begin with ``torch_``, which are imported
for torch functions only, and nothing imports TVM before a library is loaded.
"""
