"""Errors of TVM in the words of this package; TVM's own text goes to the log of the process."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tuner.errors import TunerError, lacks_memory


@contextmanager
def described(describe: Callable[[str], TunerError]) -> Iterator[None]:
    """Replace an unexpected error that is raised inside.

    Errors of this package, of the operating system and of exhausted memory pass.

    Args:
        describe: Makes the new error from the name of the old one's class.

    Raises:
        TunerError: The result of ``describe``.
    """
    try:
        yield
    except (TunerError, OSError):
        raise
    except Exception as error:
        if lacks_memory(error):
            raise
        traceback.print_exc()
        raise describe(type(error).__name__) from None
