"""Docstrings as Markdown, for the reference of Python."""

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^(?:(?:>>>|\.\.\.) ?.*(?:\n|\Z))+", re.MULTILINE)
_ROLE = re.compile(r":(?:class|func|mod|meth):(?=`)")
# The reference shows nothing of them, and reading them would take half of a build of the site.
_INTERNAL = {"cli", "devices", "engines", "networks", "packs", "service", "tuning", "workers"}

_submodules = griffe.ModuleFinder.submodules


def _public_submodules(finder: Any, module: Any) -> list[Any]:
    return [each for each in _submodules(finder, module) if each[0][0] not in _INTERNAL]


griffe.ModuleFinder.submodules = _public_submodules


class Docstrings(griffe.Extension):  # type: ignore[misc]
    """Turns doctests into blocks of code, and names with a role into plain names."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Rewrite the docstring of an object that was read."""
        if obj.docstring is not None:
            text = _ROLE.sub("", obj.docstring.value)
            obj.docstring.value = _DOCTEST.sub(_as_block, text)


def _as_block(doctest: re.Match[str]) -> str:
    code = re.sub(r"^(?:>>>|\.\.\.) ?", "", doctest[0].strip(), flags=re.MULTILINE)
    return f"```python\n{re.sub(r'  # doctest:.*', '', code)}\n```\n"
