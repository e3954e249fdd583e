"""The program ``tuner``, also as ``python -m tuner``."""

import os
import signal


def main() -> None:
    """Run the command line; Ctrl-C while it is imported ends it without a traceback."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
    from tuner.cli.main import main as run

    signal.signal(signal.SIGINT, handler)
    run()


if __name__ == "__main__":
    main()
