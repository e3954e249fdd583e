"""Notices when what a function reads besides its arguments is no longer what was compiled."""

import inspect
import operator
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

_PLAIN = (bool, int, float, str)
_MODE = operator.attrgetter("training")
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))

Reading: TypeAlias = tuple[torch.Tensor, int | None, int]


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
    in place; layers, modes and attributes by identity, but for the attributes of torch's own
    layers, which nobody changes; hooks are counted.
    """

    def __init__(self, sources: Sources) -> None:
        modules = list(dict.fromkeys(m for root in sources.modules for m in root.modules()))
        self._names = [(where, name, where.get(name)) for where, name in sources.names]
        self._modules = modules
        self._counted = [each for module in modules for each in _counted(module)]
        self._n_items = sum(map(len, self._counted))
        self._parts = [each for module in modules for each in _parts(module) if each]
        self._picked = [(_getter(each), each.__dict__) for each in modules if not _is_torchs(each)]
        self._values = self._look()
        tensors = {id(each): each for each in (*sources.tensors, *self._values)}
        self._tensors = [read(each) for each in tensors.values() if isinstance(each, torch.Tensor)]

    def add(self, readings: Iterable[Reading]) -> None:
        """Watch more tensors, as they were when they were read."""
        known = {id(tensor) for tensor, _, _ in self._tensors}
        self._tensors = [*self._tensors, *(each for each in readings if id(each[0]) not in known)]

    def has_changed(self) -> bool:
        """Whether anything is not what it was."""
        for tensor, version, pointer in self._tensors:
            if version is not None and tensor._version != version:
                return True
            if tensor.data_ptr() != pointer:
                return True
        if sum(map(len, self._counted)) != self._n_items or self._has_other_values():
            return True
        return any(where.get(name) is not value for where, name, value in self._names)

    def _has_other_values(self) -> bool:
        try:
            values = self._look()
        except KeyError:
            return True
        if len(values) == len(self._values) and all(map(operator.is_, values, self._values)):
            return False
        if len(values) != len(self._values) or not all(map(_same, values, self._values)):
            return True
        # Equal values in new places, as torch leaves them after a trace.
        self._values = values
        return False

    def _look(self) -> list[Any]:
        return [
            *map(_MODE, self._modules),
            *chain.from_iterable(map(dict.values, self._parts)),
            *chain.from_iterable([pick(where) for pick, where in self._picked]),
        ]


def _parts(module: nn.Module) -> tuple[dict[str, Any], ...]:
    return module._modules, module._parameters, module._buffers


def _counted(module: nn.Module) -> tuple[Mapping[str, Any], ...]:
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    inside = () if _is_torchs(module) else (module.__dict__,)
    return (*_parts(module), *hooks, *inside)


def _is_torchs(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.")


def _getter(module: nn.Module) -> Callable[[Any], tuple[Any, ...]]:
    """Return what gets the values that a module has of its own out of its dictionary."""
    own = [key for key in module.__dict__ if key not in _OF_EVERY_MODULE]
    # One key alone would not give a tuple.
    return operator.itemgetter("training", "training", *own)


class Readings(TorchFunctionMode):  # type: ignore[misc]
    """Notes, while a function runs, which tensors it reads that it neither got nor made.

    Attributes:
        outside: Each of them, with what :meth:`Watch.add` compares.
    """

    def __init__(self, given: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.outside: list[Reading] = []
        # An id may be another tensor's once a tensor is gone.
        self._known = {id(each): weakref.ref(each) for each in given}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Hear of one operation."""
        for tensor in self._new((args, kwargs)):
            self.outside.append(read(tensor))
        returned = func(*args, **(kwargs or {}))
        self._new(returned)
        return returned

    def _new(self, nested: Any) -> list[torch.Tensor]:
        found = []
        for leaf in pytree.tree_leaves(nested):
            if isinstance(leaf, torch.Tensor):
                known = self._known.get(id(leaf))
                if known is None or known() is not leaf:
                    self._known[id(leaf)] = weakref.ref(leaf)
                    found.append(leaf)
        return found


def read(tensor: torch.Tensor) -> Reading:
    """Note what a tensor is now: torch's count of its changes, and where its values are."""
    # Tensors of inference mode have no count.
    version = None if tensor.is_inference() else int(tensor._version)
    return tensor, version, tensor.data_ptr()


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
