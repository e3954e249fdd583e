"""The list of the corpus."""

from benchmarks.corpus.catalogue import audio, own, packaged, quantised, text, unusual, vision
from benchmarks.corpus.entries import Entry

ENTRIES: tuple[Entry, ...] = (
    *packaged.ENTRIES,
    *vision.ENTRIES,
    *text.ENTRIES,
    *audio.ENTRIES,
    *unusual.ENTRIES,
    *own.ENTRIES,
    *quantised.ENTRIES,
)


def entry_named(name: str) -> Entry:
    """Return an entry by name.

    Raises:
        KeyError: If there is none.
    """
    return {entry.name: entry for entry in ENTRIES}[name]
