"""The API that the files of deploy/ are about, and a library that runs without the tuner."""

from tests.api.conftest import quick
from tests.deploy.small_network import built

__all__ = ["built", "quick"]
