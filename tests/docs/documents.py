"""Documents and their examples, for the tests of the documentation."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Example:
    """Command in a ``console`` block: its document, arguments, and the output shown below it."""

    document: str
    arguments: tuple[str, ...]
    output: str

    def __str__(self) -> str:
        """Return the name of a test."""
        return f"{self.document}: {shlex.join(self.arguments)}"


def documents() -> list[Path]:
    """Return every page of the documentation."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def examples() -> list[Example]:
    """Return every ``$ tuner ...`` of a console block."""
    return [example for page in documents() for example in _examples(page)]


def section(text: str, heading: str) -> str:
    """Return the text below a second-level heading; empty if there is none."""
    match = re.search(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE
    )
    return match[1] if match else ""


def _examples(page: Path) -> list[Example]:
    name = str(page.relative_to(ROOT))
    parsed = []
    for block in re.findall(r"^```console\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        for command in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, output = command.partition("\n")
            words = shlex.split(line, comments=True)
            if words and words[0] == "tuner":
                parsed.append(Example(name, tuple(words[1:]), output))
    return parsed
