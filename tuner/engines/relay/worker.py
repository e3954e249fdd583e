"""The functions of this engine, as workers call them."""

# isort: off
from tuner.engines.relay import boot  # noqa: F401  before anything imports TVM

# isort: on
from tuner.engines.relay.build import build
from tuner.engines.relay.calibration import calibration_kernel
from tuner.engines.relay.extract import extract
from tuner.engines.relay.propose import propose
from tuner.engines.relay.run import reference, run, run_interleaved
from tuner.engines.relay.targets import describe_target

__all__ = [
    "build",
    "calibration_kernel",
    "describe_target",
    "extract",
    "propose",
    "reference",
    "run",
    "run_interleaved",
]
