"""The command lines of Python processes, which import nothing from the current folder.

By itself, Python looks for modules in the current folder first, or in the folder of the program.
Files that lie there, such as those that came with a model, must not run as modules.
"""

import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

#: The tuner's own packages; a folder of the user may have modules of these names.
OWN_PACKAGES = ("tuner", "scheduler", "records")

# Imports packages from given folders, and nothing else that lies beside them.
_FINDER = """\
import sys
from importlib.machinery import PathFinder

class TunerFinder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        folder = None if path else {folders!r}.get(name)
        return folder and PathFinder.find_spec(name, [folder])

sys.meta_path.insert(0, TunerFinder)
"""
# Comes after what the new process finds by itself, so that nothing there is hidden.
_MORE_FOLDERS = "sys.path += [folder for folder in {folders!r} if folder not in sys.path]\n"


def run_module(name: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """Return the command line that runs a module as ``python -m`` does."""
    return [python, "-P", "-m", name, *arguments]


def run_code(code: str, *arguments: str, packages: Iterable[str] = ()) -> list[str]:
    """Return the command line that runs code which imports what this process can.

    Args:
        *arguments: Its arguments, ``sys.argv[1:]``.
        packages: Packages or modules that it imports, beside the tuner's and those installed, from
            wherever this process does.
    """
    folders = {name: _folder_of(name) for name in (*OWN_PACKAGES, *packages)}
    existing = {name: folder for name, folder in folders.items() if folder}
    prepared = finder(existing) + _MORE_FOLDERS.format(folders=import_folders())
    return [sys.executable, "-P", "-c", prepared + code, *arguments]


def finder(folders: Mapping[str, str]) -> str:
    """Return code that lets a process import packages from their folders, by their names."""
    return _FINDER.format(folders=dict(folders))


def import_folders() -> list[str]:
    """Return where this process imports from, without the current folder and the program's.

    Those of installed packages stay in any case: a program may be a module among them.
    """
    left_out: set[str] = set()
    for folder in (os.curdir, _folder_of_program()):
        try:
            left_out.add(os.path.realpath(folder))
        except OSError:  # the current folder was removed
            continue
    left_out -= set(map(os.path.realpath, _installed_folders()))
    absolute = filter(os.path.isabs, sys.path)
    return [folder for folder in absolute if os.path.realpath(folder) not in left_out]


def _installed_folders() -> Iterator[str]:
    """Yield the folders of packages that each Python process of this installation finds."""
    yield from (sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    yield from (*site.getsitepackages(), site.getusersitepackages())
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    yield from filter(os.path.isabs, named)


def _folder_of_program() -> str:
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.path.dirname(program) if program else os.curdir  # noqa: PTH120


def _folder_of(name: str) -> str | None:
    """Return the folder in which a package or module lies; None if there is none."""
    try:
        spec = find_spec(name)
    except ValueError:  # a module without a specification
        return None
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or ())
    path = folders[0] if folders else spec.origin
    return str(Path(path).absolute().parent) if path else None
