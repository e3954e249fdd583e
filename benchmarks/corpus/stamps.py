"""Names of the corpus's files, and stamps that say what each was made from."""

from pathlib import Path

from benchmarks.corpus.catalogue import entry_named
from benchmarks.corpus.entries import Entry, Quantised


def model_file(folder: Path, entry: Entry) -> Path:
    """Return the path of an entry's ONNX file."""
    return folder / "models" / f"{entry.name}.onnx"


def is_made(folder: Path, entry: Entry) -> bool:
    """Return True if the file exists and was made from the entry as it is now."""
    stamp = _stamp(folder, entry)
    return (
        model_file(folder, entry).is_file()
        and stamp.is_file()
        and stamp.read_text(encoding="utf-8") == _key(entry)
    )


def mark_made(folder: Path, entry: Entry) -> None:
    """Write the stamp of a file that was just made."""
    _stamp(folder, entry).write_text(_key(entry), encoding="utf-8")


def _stamp(folder: Path, entry: Entry) -> Path:
    return model_file(folder, entry).with_suffix(".key")


def _key(entry: Entry) -> str:
    if isinstance(entry.source, Quantised):
        return f"{entry.key} {entry_named(entry.source.entry).key}"
    return entry.key
