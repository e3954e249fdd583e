"""What a process needs of the system to hold a thousand connections."""

import resource


def raise_file_limit() -> int:
    """Allow as many open files as we may; returns how many."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
