"""The command line."""

import time

#: Time at which the process began, by the monotonic clock.
STARTED = time.monotonic()
