"""The API that the files of deploy/ are about, and a library that runs without the tuner."""

from tests.api.conftest import quick
from tests.deploy.small_network import bucketed, built, tailed

__all__ = ["bucketed", "built", "quick", "tailed"]
