"""Submitted forms, to be shown again with their errors."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Form:
    """The fields of a form as they were sent.

    Attributes:
        sent: Texts by field.
        wrong: Names of invalid fields.
        open: True to show the form opened.
    """

    sent: Mapping[str, Sequence[str]] = field(default_factory=dict)
    wrong: tuple[str, ...] = ()
    open: bool = False

    def value(self, name: str, default: str = "", index: int = 0) -> str:
        """Return the text of a field, by index where several have that name."""
        texts = self.sent.get(name, ())
        return texts[index] if index < len(texts) else default

    def all(self, name: str) -> str:
        """Return the texts of a field as one."""
        return " ".join(self.sent.get(name, ()))

    def rest(self, shown: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """Yield fields and texts that the form does not show.

        Args:
            shown: Number of texts that it shows, by field.
        """
        for name, texts in self.sent.items():
            yield from ((name, text) for text in texts[shown.get(name, 0) :] if text)

    def bad(self, name: str) -> bool:
        """Return whether a field is invalid."""
        return name in self.wrong


EMPTY = Form()


def local_path(text: str) -> str:
    """Return a path to redirect to, or the start page if it is not a path of this service."""
    if not text.startswith("/") or text.startswith(("//", "/\\")) or not text.isprintable():
        return "/"
    return text
