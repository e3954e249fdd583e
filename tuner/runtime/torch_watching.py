"""Notices when what a function reads besides its arguments is no longer what was compiled."""

import inspect
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

_PLAIN = (bool, int, float, str)


@dataclass(frozen=True)
class Sources:
    """What a function reads besides its arguments.

    Attributes:
        modules: Modules it is, is a method of, or names in its closure or among its globals.
        tensors: Tensors it names there.
        names: Everything else that it names there: where, under which name.
    """

    modules: tuple[nn.Module, ...]
    tensors: tuple[torch.Tensor, ...]
    names: tuple[tuple[Mapping[str, Any], str], ...]


def sources_of(function: Callable[..., Any]) -> Sources:
    """Find out what a function reads; what its callees read, modules apart, is not looked for."""
    if isinstance(function, nn.Module):
        return Sources((function,), (), ())
    owner = getattr(function, "__self__", None)
    plain = inspect.unwrap(getattr(function, "__func__", function))
    captured = inspect.getclosurevars(plain)
    values = [owner, *captured.nonlocals.values(), *captured.globals.values()]
    cells = dict(zip(plain.__code__.co_freevars, plain.__closure__ or (), strict=True))
    return Sources(
        modules=tuple(value for value in values if isinstance(value, nn.Module)),
        tensors=tuple(value for value in values if isinstance(value, torch.Tensor)),
        names=(
            *((_Cells(cells), name) for name in captured.nonlocals),
            *((plain.__globals__, name) for name in captured.globals),
        ),
    )


class Watch:
    """What the sources of a function were when it was made; asked before every call.

    Tensors are compared by identity, by where their values are and by torch's count of changes
    in place, everything else by identity.
    """

    def __init__(self, sources: Sources) -> None:
        modules = list(dict.fromkeys(m for root in sources.modules for m in root.modules()))
        self._names = [(where, name, where.get(name)) for where, name in sources.names]
        self._dicts: list[list[Any]] = [
            [each, tuple(each.values())]
            for module in modules
            for each in (module.__dict__, module._modules, module._parameters, module._buffers)
        ]
        inside = (
            value
            for _, values in self._dicts
            for value in values
            if isinstance(value, torch.Tensor)
        )
        tensors = {id(each): each for each in (*inside, *sources.tensors)}
        self._tensors: list[tuple[torch.Tensor, int | None, int]] = []
        self.add(tensors.values())

    def add(self, tensors: Iterable[torch.Tensor]) -> None:
        """Watch more tensors from now on."""
        known = {id(tensor) for tensor, _, _ in self._tensors}
        new = [each for each in tensors if id(each) not in known]
        self._tensors = [
            *self._tensors,
            *((each, _version(each), each.data_ptr()) for each in new),
        ]

    def has_changed(self) -> bool:
        """Whether anything is not what it was."""
        for tensor, version, pointer in self._tensors:
            if version is not None and tensor._version != version:
                return True
            if tensor.data_ptr() != pointer:
                return True
        for pair in self._dicts:
            now, values = pair
            if len(now) != len(values):
                return True
            if not all(map(operator.is_, now.values(), values)):
                if not all(map(_same, now.values(), values)):
                    return True
                # Equal values in new places, as torch leaves them after a trace.
                pair[1] = tuple(now.values())
        return any(where.get(name) is not value for where, name, value in self._names)


class _Cells(dict[str, Any]):
    """The variables of a closure, read anew each time."""

    def get(self, name: str, default: Any = None) -> Any:
        """Return a variable; the default if it was deleted."""
        try:
            return self[name].cell_contents
        except ValueError:
            return default


def _same(now: Any, then: Any) -> bool:
    if now is then:
        return True
    if type(now) is tuple and type(then) is tuple:
        return len(now) == len(then) and all(map(_same, now, then))
    return type(now) is type(then) and type(now) in _PLAIN and bool(now == then)


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else int(tensor._version)
