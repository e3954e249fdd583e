"""The program ``tuner``, also as ``python -m tuner``."""

import atexit
import os
import signal
import sys


def main() -> None:
    """Run the command line; Ctrl-C while it is imported ends it without a traceback."""
    _open_streams()
    ended: list[int] = []
    # Registered before what commands register, so that it runs after that.
    atexit.register(_end_at_once, ended)
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
    from tuner.cli.main import main as run

    signal.signal(signal.SIGINT, handler)
    try:
        run()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            ended.append(end.code or 0)
        raise


def _open_streams() -> None:
    """Write what a closed stream would get nowhere: print() has it on stdout instead of stderr."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115


def _end_at_once(ended: list[int]) -> None:
    """End the process before Python frees all objects, which takes seconds on a busy machine."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
        (status,) = ended
    except (AttributeError, OSError, ValueError):
        return  # Python reports the error
    os._exit(status)


if __name__ == "__main__":
    main()
