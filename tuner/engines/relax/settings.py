"""How kernels are compiled: whatever is here, the bytes of an object depend on."""

# The checks of a kernel's arguments are a third of its compilation. Arguments are right by
# construction here, and in a network: inputs are checked where they come in.
PASS_CONFIG = {"tirx.disable_assert": True}
# Bump "objects" when a change of objects.py, cuda.py, traces.py or build.py changes what is
# compiled from the same trace, or without one: objects are cached by it.
COMPILER = {"objects": 2, "pass_config": PASS_CONFIG}
