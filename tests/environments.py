"""The environment of the engine relay, for tests that call it: ``make relay-env`` makes it."""

import os
from pathlib import Path

import pytest

from tuner.engines.environments import Interpreter

ROOT = Path(__file__).parents[1]
RELAY_PYTHON = Path(os.environ.get("TUNER_RELAY_PYTHON") or ROOT / ".venv-relay/bin/python")
# Our tests are found beside the tuner.
INTERPRETER = Interpreter(str(RELAY_PYTHON), {"tuner": str(ROOT), "tests": str(ROOT)})

needs_relay = [
    pytest.mark.tvm,
    pytest.mark.skipif(not RELAY_PYTHON.is_file(), reason="make relay-env was not run"),
]
