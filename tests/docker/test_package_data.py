"""The wheel has every file of the packages that is not Python."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_package_data_names_every_other_file() -> None:
    """A file that moved is still installed, and each pattern has files."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]
    installed = {
        package: {pattern: set((ROOT / package).glob(pattern)) for pattern in globs}
        for package, globs in patterns.items()
    }
    others = {
        path
        for package in patterns
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix != ".py" and path.parent.name != "__pycache__"
    }

    assert [p for globs in installed.values() for p, files in globs.items() if not files] == []
    assert others == {f for globs in installed.values() for files in globs.values() for f in files}
