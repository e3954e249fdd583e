"""The engine for TVM 0.19: Relay graphs, Ansor's sketch search.

Its TVM is another one than that of :mod:`tuner.engines.relax` and has the same name, so that it
lives in an environment of its own: see :mod:`tuner.engines.environments`. Import
:mod:`tuner.engines.relay.worker` in a worker process there only.
"""
