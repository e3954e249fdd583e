"""Networks in, tuned and verified libraries out."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuner.engines.relax.network import Library


def load(path: str | Path) -> "Library":
    """Load a built library as a callable on numpy arrays.

    This imports TVM's runtime into the calling process.

    >>> import tuner
    >>> network = tuner.load("squeezenet.lib")  # doctest: +SKIP
    >>> outputs = network(data_0=image)  # doctest: +SKIP

    Args:
        path: Folder that ``tuner build`` wrote.

    Returns:
        A callable: arrays by input name in, arrays by output name out.

    Raises:
        RequestError: If there is no library, it is damaged, or of a newer version.
    """
    from tuner.engines.relax.network import Library

    return Library(Path(path))
