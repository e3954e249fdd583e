"""The engine for TVM 0.19: Relay graphs, Ansor's sketch search.

Its TVM and that of :mod:`tuner.engines.relax` install one package name, so it needs a separate
environment: see :mod:`tuner.engines.environments`. Import
:mod:`tuner.engines.relay.worker` in a worker process there only.
"""
