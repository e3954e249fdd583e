"""Detect changes of the tensors, modules and variables that a function reads besides arguments."""

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

_PLAIN_TYPES = (bool, int, float, str)
_MODE = operator.attrgetter("training")
_COMMON_ATTRIBUTES = frozenset(vars(nn.Module()))

# A tensor, torch's count of its changes in place, and the address of its values.
TensorState: TypeAlias = tuple[torch.Tensor, int | None, int]


@dataclass(frozen=True)
class Dependencies:
    """The objects that a function reads besides its arguments.

    Attributes:
        modules: The function itself, its owner, and modules among its closure and globals.
        tensors: Tensors among its closure and globals.
        names: All variables of its closure and globals: their namespace and name.
    """

    modules: tuple[nn.Module, ...]
    tensors: tuple[torch.Tensor, ...]
    names: tuple[tuple[Mapping[str, Any], str], ...]


def dependencies_of(function: Callable[..., Any]) -> Dependencies:
    """Return what a function reads; of its callees, only modules are examined."""
    if isinstance(function, nn.Module):
        return Dependencies((function,), (), ())
    owner = getattr(function, "__self__", None)
    plain = inspect.unwrap(getattr(function, "__func__", function))
    captured = inspect.getclosurevars(plain)
    values = [owner, *captured.nonlocals.values(), *captured.globals.values()]
    cells = dict(zip(plain.__code__.co_freevars, plain.__closure__ or (), strict=True))
    return Dependencies(
        modules=tuple(value for value in values if isinstance(value, nn.Module)),
        tensors=tuple(value for value in values if isinstance(value, torch.Tensor)),
        names=(
            *((_Cells(cells), name) for name in captured.nonlocals),
            *((plain.__globals__, name) for name in captured.globals),
        ),
    )


class ChangeDetector:
    """The state of a function's dependencies when it was made, to compare before every call.

    Tensors are compared by identity, address, and torch's count of changes in place. Layers, modes
    and attributes are compared by identity; attributes of torch's own layers are not compared,
    since programs do not change them. Hooks are counted.
    """

    def __init__(self, dependencies: Dependencies) -> None:
        modules = list(dict.fromkeys(m for root in dependencies.modules for m in root.modules()))
        self._names = [(scope, name, scope.get(name)) for scope, name in dependencies.names]
        self._modules = modules
        self._counted = [mapping for module in modules for mapping in _counted(module)]
        self._n_items = sum(map(len, self._counted))
        self._parts = [part for module in modules for part in _parts(module) if part]
        self._own = [
            (_own_getter(module), module.__dict__) for module in modules if not _is_of_torch(module)
        ]
        self._values = self._current_values()
        tensors = {id(value): value for value in (*dependencies.tensors, *self._values)}
        self._states = [
            state_of(value) for value in tensors.values() if isinstance(value, torch.Tensor)
        ]

    def add(self, states: Iterable[TensorState]) -> None:
        """Compare more tensors with their states when they were read."""
        present = {id(tensor) for tensor, _, _ in self._states}
        new = (state for state in states if id(state[0]) not in present)
        self._states = [*self._states, *new]

    def has_changed(self) -> bool:
        """Return whether any dependency has changed."""
        for tensor, version, pointer in self._states:
            if version is not None and tensor._version != version:
                return True
            if tensor.data_ptr() != pointer:
                return True
        if sum(map(len, self._counted)) != self._n_items or self._has_other_values():
            return True
        return any(scope.get(name) is not value for scope, name, value in self._names)

    def _has_other_values(self) -> bool:
        try:
            values = self._current_values()
        except KeyError:
            return True
        if len(values) == len(self._values) and all(map(operator.is_, values, self._values)):
            return False
        if len(values) != len(self._values) or not all(map(_same, values, self._values)):
            return True
        # Equal values in new objects, as torch leaves them after a trace.
        self._values = values
        return False

    def _current_values(self) -> list[Any]:
        return [
            *map(_MODE, self._modules),
            *chain.from_iterable(map(dict.values, self._parts)),
            *chain.from_iterable([get(attributes) for get, attributes in self._own]),
        ]


def _parts(module: nn.Module) -> tuple[dict[str, Any], ...]:
    return module._modules, module._parameters, module._buffers


def _counted(module: nn.Module) -> tuple[Mapping[str, Any], ...]:
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    inside = () if _is_of_torch(module) else (module.__dict__,)
    return (*_parts(module), *hooks, *inside)


def _is_of_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.")


def _own_getter(module: nn.Module) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that gets a module's own attributes from its dictionary."""
    own = [key for key in module.__dict__ if key not in _COMMON_ATTRIBUTES]
    # With a single key, itemgetter would not return a tuple.
    return operator.itemgetter("training", "training", *own)


class ReadRecorder(TorchFunctionMode):  # type: ignore[misc]
    """Records the tensors that a running function reads, and neither got nor made.

    Attributes:
        states: State of each of them, for :meth:`ChangeDetector.add`.
    """

    def __init__(self, given: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.states: list[TensorState] = []
        # The id of a tensor that was freed may belong to another one.
        self._seen = {id(tensor): weakref.ref(tensor) for tensor in given}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Record the tensors of one operation, and run it."""
        for tensor in self._unseen((args, kwargs)):
            self.states.append(state_of(tensor))
        returned = func(*args, **(kwargs or {}))
        self._unseen(returned)
        return returned

    def _unseen(self, nested: Any) -> list[torch.Tensor]:
        """Return the tensors that were not seen before, and mark them as seen."""
        unseen = []
        for leaf in pytree.tree_leaves(nested):
            if isinstance(leaf, torch.Tensor):
                seen = self._seen.get(id(leaf))
                if seen is None or seen() is not leaf:
                    self._seen[id(leaf)] = weakref.ref(leaf)
                    unseen.append(leaf)
        return unseen


def state_of(tensor: torch.Tensor) -> TensorState:
    """Return a tensor with torch's count of its changes in place, and its address."""
    # Tensors of inference mode have no count.
    version = None if tensor.is_inference() else int(tensor._version)
    return tensor, version, tensor.data_ptr()


class _Cells(dict[str, Any]):
    """The variables of a closure, read at each access."""

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
    return type(now) is type(then) and type(now) in _PLAIN_TYPES and bool(now == then)
