"""Compiler settings that the bytes of an object depend on."""

# Bump when a change of importer.py or extract.py changes the workloads of networks.
PIPELINE = "relay-3"
PASS_CONFIG = {"relay.backend.use_auto_scheduler": True}
OPT_LEVEL = 3
# Bump "objects" when a change of objects.py, link.py, extremes.py or
# traces.py changes what is compiled.
COMPILER = {"objects": 2, "pass_config": PASS_CONFIG, "opt_level": OPT_LEVEL}
