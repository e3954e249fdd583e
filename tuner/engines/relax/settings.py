"""Compiler settings that the bytes of an object depend on."""

from tuner.library.processors import this_machine

# Checks of a kernel's arguments are a third of its compilation. Arguments are right by
# construction here and in a network, which checks its inputs.
PASS_CONFIG = {"tirx.disable_assert": True}
# Bump "objects" when a change of objects.py, nvrtc.py, cpu_codegen.py, extremes.py, vector_math.py,
# vector_functions.py, nested_calls.py, block_limits.py, defaults.py, spread_loads.py,
# traces.py, packed_layouts.py, prefetch.py, build.py, dot_instructions.py, a variant, a template of
# Triton, their order (ranking.py, gpus.py) or the schedules by rule changes what is compiled from
# the same trace, or without one: it is part of the key of cached objects. So is the machine that
# compiles: code that packs weights runs on it.
COMPILER = {"objects": 62, "pass_config": PASS_CONFIG, "machine": this_machine()}
