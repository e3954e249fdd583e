"""Bases of libraries: calls by name, and libraries around another one."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from tuner.library.arrays import Array
    from tuner.library.loading import DeviceLibrary, Library
    from tuner.library.manifest import Inputs


class NamedLibrary:
    """A library that is called with arrays by name, or with one array if it has one input.

    Attributes:
        inputs: Shape and dtype by input name, of the first program.
        outputs: Names of the outputs, in order.
    """

    inputs: "Inputs"
    outputs: tuple[str, ...]

    def __call__(
        self, inputs: "Mapping[str, Array] | Array | None" = None, **named: "Array"
    ) -> "dict[str, Array]":
        """Run the network; see :class:`tuner.library.loading.Library`."""
        if inputs is None or isinstance(inputs, Mapping):
            return self.run_arrays({**(inputs or {}), **named})
        if len(self.inputs) != 1 or named:
            raise ValueError(f"name the array of each input: {', '.join(self.inputs)}")
        return self.run_arrays(dict.fromkeys(self.inputs, inputs))

    def run_arrays(self, arrays: "Mapping[str, Array]") -> "dict[str, Array]":
        """Run the network on arrays by input name."""
        raise NotImplementedError

    def __repr__(self) -> str:
        inputs = (f"{name}: {dtype}{list(shape)}" for name, (shape, dtype) in self.inputs.items())
        return f"<library ({', '.join(inputs)}) -> {', '.join(self.outputs)}>"


class LibraryWrapper(NamedLibrary):
    """A library that another one calls; arrays on a GPU reach the other as they are."""

    def __init__(self, library: "Library") -> None:
        self.inputs = library.inputs
        self.outputs = library.outputs
        self.programs: Any = getattr(library, "programs", ())
        self._library = library

    def run_on_device(
        self,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any] | None = None,
        stream: Any = None,
    ) -> dict[str, Any]:
        """Run the network on a GPU; see :class:`tuner.library.loading.DeviceLibrary`."""
        library = cast("DeviceLibrary", self._library)
        return library.run_on_device(inputs, outputs, stream)
