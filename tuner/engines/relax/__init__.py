"""The engine for apache-tvm 0.27: Relax graphs, MetaSchedule search.

Import :mod:`tuner.engines.relax.worker` in a worker process only: it imports TVM.
"""

from tuner.engines.relax.target import cudart

cudart.preload()
