"""A library around another one, which changes what its calls take or return."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from tuner.library.loading import DeviceLibrary, Library
    from tuner.library.manifest import Inputs


class LibraryWrapper:
    """A library that another one calls; arrays on a GPU reach the other as they are.

    Attributes:
        inputs: Shape and dtype by input name, of the first program.
        outputs: Names of the outputs, in order.
        programs: Programs of the library.
    """

    def __init__(self, library: "Library") -> None:
        self.inputs: Inputs = library.inputs
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
