"""System limits that a process needs raised to hold a thousand connections."""

import resource


def raise_file_limit() -> int:
    """Raise the limit on open files to the maximum, and return it."""
    _, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))
    return maximum
