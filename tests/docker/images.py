"""The Dockerfiles and compose.yaml, read for their tests."""

import json
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Instruction:
    """One instruction of a Dockerfile, its lines joined; ``stage`` is the name of its stage."""

    keyword: str
    text: str
    stage: str


def read_dockerfile(name: str) -> list[Instruction]:
    """Return the instructions of docker/NAME.Dockerfile, without comments.

    A stage that is not named, which is what the image is made of, has the name "".
    """
    text = re.sub(r"^\s*#.*\n", "", (ROOT / f"docker/{name}.Dockerfile").read_text(), flags=re.M)
    instructions, stage = [], "before"
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        keyword, _, rest = line.strip().partition(" ")
        if keyword == "FROM":
            stage = rest.partition(" AS ")[2]
        if keyword:
            instructions.append(Instruction(keyword, rest, stage))
    return instructions


def texts(instructions: list[Instruction], keyword: str) -> list[str]:
    """Return what all instructions of one kind say."""
    return [each.text for each in instructions if each.keyword == keyword]


def command_of(text: str) -> list[str]:
    """Return the words of a command in exec form; a shell form raises."""
    words: list[str] = json.loads(text[text.index("[") :])
    return words


def read_compose(path: str = "compose.yaml") -> dict[str, Any]:
    """Return a compose file as it is written: variables are not filled in."""
    compose: dict[str, Any] = yaml.safe_load((ROOT / path).read_text())
    return compose


def read_project() -> dict[str, Any]:
    """Return the project table of pyproject.toml."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def read_names(path: str) -> list[str]:
    """Return the requirements of a list, one a line, without comments."""
    lines = (ROOT / path).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def closure(requirements: Iterable[str]) -> frozenset[str]:
    """Return the distributions that requirements bring, with all they need, by canonical name."""
    names: set[tuple[str, str]] = set()
    waiting = _needed(requirements, "")
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras} - {e for n, e in names if n == name}:
            names.add((name, extra))
            waiting += _needed(metadata.requires(name) or (), extra)
    return frozenset(name for name, _extra in names)


def _needed(requirements: Iterable[str], extra: str) -> list[Requirement]:
    needs = map(Requirement, requirements)
    return [n for n in needs if not n.marker or n.marker.evaluate({"extra": extra})]
