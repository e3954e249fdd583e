"""What people typed into forms, to be shown again if it was wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Form:
    """The fields of a form as they were sent, and which one was wrong.

    Attributes:
        sent: Texts by field.
        wrong: Names of the fields that could not be read.
        open: Whether to show the form unasked.
    """

    sent: Mapping[str, Sequence[str]] = field(default_factory=dict)
    wrong: tuple[str, ...] = ()
    open: bool = False

    def value(self, name: str, default: str = "", index: int = 0) -> str:
        """Return what a field holds, or one of several of that name."""
        sent = self.sent.get(name, ())
        return sent[index] if index < len(sent) else default

    def bad(self, name: str) -> bool:
        """Return whether a field could not be read."""
        return name in self.wrong


EMPTY = Form()


def local_path(text: str) -> str:
    """Return where to go after a form, if that is a page of ours; the start page otherwise."""
    if not text.startswith("/") or text.startswith(("//", "/\\")) or not text.isprintable():
        return "/"
    return text
