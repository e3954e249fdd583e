"""The documentation as tests read it."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Example:
    """A command of ``console`` block: the file it is in, its arguments, what is shown below it."""

    document: str
    arguments: tuple[str, ...]
    output: str

    def __str__(self) -> str:
        """Name a test."""
        return f"{self.document}: {shlex.join(self.arguments)}"


def documents() -> list[Path]:
    """Return every page of the documentation."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def examples() -> list[Example]:
    """Every ``$ tuner ...`` in a console block."""
    return [example for page in documents() for example in _examples(page)]


def section(text: str, heading: str) -> str:
    """Return what stands below a second-level heading; empty if there is none."""
    found = re.search(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE
    )
    return found[1] if found else ""


def _examples(page: Path) -> list[Example]:
    name = str(page.relative_to(ROOT))
    found = []
    for block in re.findall(r"^```console\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        for command in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, output = command.partition("\n")
            words = shlex.split(line, comments=True)
            if words and words[0] == "tuner":
                found.append(Example(name, tuple(words[1:]), output))
    return found
