"""Fixed input shapes from the declared shapes of a model and the requested ones."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from tuner.errors import ModelError

#: A declared shape: numbers and names of dynamic dimensions ("?" if unnamed); None if even the
#: rank is unknown.
Dims = tuple[int | str, ...] | None
_NO_SIZES: Mapping[str, int] = {}


@dataclass(frozen=True)
class DynamicDimension:
    """A dynamic dimension of a model.

    Attributes:
        name: Its name in the model, or ``INPUT.AXIS`` if it has none there.
        axes: Its axes by input name.
        parts: Names of the dimensions whose sum it is, such as ``a`` and ``b`` of ``a + b``; empty
            for a dimension that has sizes of its own.
        offset: Number that is added to the parts.
    """

    name: str
    axes: Mapping[str, tuple[int, ...]]
    parts: tuple[str, ...] = ()
    offset: int = 0

    @property
    def is_batch(self) -> bool:
        """True if it is the first dimension of every input that has it."""
        return all(axes == (0,) for axes in self.axes.values())


def dynamic_dimensions(declared: Mapping[str, Dims]) -> tuple[DynamicDimension, ...]:
    """Return the dynamic dimensions of inputs whose rank is known, in the order of the inputs."""
    axes_by_name: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, dims in name_dimensions(declared).items():
        for axis, dim in enumerate(dims or ()):
            if isinstance(dim, str):
                axes = axes_by_name.setdefault(dim, {})
                axes[name] = (*axes.get(name, ()), axis)
    return tuple(
        DynamicDimension(name, axes, *_sum_of(name, axes_by_name))
        for name, axes in axes_by_name.items()
    )


def _sum_of(name: str, names: Collection[str]) -> tuple[tuple[str, ...], int]:
    """Return the parts of a dimension that is named as a sum, and the number added to them.

    Exporters name so what follows from other dimensions. A part that no input has alone could not
    be given, and the dimension has sizes of its own then.
    """
    terms = [term.strip() for term in name.split("+")]
    numbers = [int(term) for term in terms if term.isascii() and term.isdecimal()]
    parts = tuple(term for term in terms if not (term.isascii() and term.isdecimal()))
    is_sum = len(terms) > 1 and parts and all(part in names for part in parts)
    return (parts, sum(numbers)) if is_sum else ((), 0)


def name_dimensions(declared: Mapping[str, Dims]) -> dict[str, Dims]:
    """Return declared shapes with every unnamed dimension named ``INPUT.AXIS``."""
    return {
        name: None
        if dims is None
        else tuple(f"{name}.{axis}" if dim == "?" else dim for axis, dim in enumerate(dims))
        for name, dims in declared.items()
    }


def fix_shapes(
    declared: Mapping[str, Dims],
    requested: Mapping[str, tuple[int, ...]],
    sizes: Mapping[str, int] = _NO_SIZES,
) -> dict[str, tuple[int, ...]]:
    """Return the shape of every input, in declared order.

    Args:
        declared: Shapes declared by the model.
        requested: Shapes from the user, which may set dynamic dimensions only.
        sizes: Sizes of dynamic dimensions by name.

    Raises:
        ModelError: If a request matches no input or contradicts the model, if two inputs disagree
            on a named dimension, or if a dynamic input has no request and a dimension that no
            other input with a request shares.
    """
    dimensions = dynamic_dimensions(declared)
    if sizes:
        declared = _with_sizes(name_dimensions(declared), sizes)
    for name, shape in requested.items():
        if name not in declared:
            raise _wrong(f"the model has no input {name!r}; its inputs are {_names(declared)}")
        _check_request(name, declared[name], shape)
    shared = _shared_sizes(declared, requested)
    shared = {**_summed_sizes(dimensions, {**sizes, **shared}), **shared}
    # A dimension of several inputs needs to be given once.
    declared = {
        name: dims
        if dims is None
        else tuple(shared.get(dim, dim) if isinstance(dim, str) else dim for dim in dims)
        for name, dims in declared.items()
    }
    missing = [name for name, dims in declared.items() if _is_open(dims) and name not in requested]
    if missing:
        shown = " and ".join(f"{name!r} with shape {_show(declared[name])}" for name in missing)
        examples = " ".join(f"{name}={_suggest(declared[name])}" for name in missing)
        raise _wrong(f"the shape must be fixed for input {shown}; for example: {examples}")
    # The shape of an input without a request consists of numbers, as checked above.
    return {
        name: requested[name] if name in requested else tuple(int(dim) for dim in dims or ())
        for name, dims in declared.items()
    }


def _summed_sizes(
    dimensions: Iterable[DynamicDimension], sizes: Mapping[str, int]
) -> dict[str, int]:
    """Return the sizes of dimensions that are sums of dimensions with known sizes."""
    return {
        each.name: sum(sizes[part] for part in each.parts) + each.offset
        for each in dimensions
        if each.parts and all(part in sizes for part in each.parts)
    }


def refuse_empty(shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that every input has elements.

    Raises:
        ModelError: If one has none.
    """
    for name, shape in shapes.items():
        if 0 in shape:
            raise _wrong(f"input {name!r} of shape {shape} has no elements: export without it")


def _with_sizes(declared: Mapping[str, Dims], sizes: Mapping[str, int]) -> dict[str, Dims]:
    """Replace dynamic dimensions by their sizes."""
    names = [dimension.name for dimension in dynamic_dimensions(declared)]
    unknown = sorted(set(sizes) - set(names))
    if unknown:
        raise unknown_dimension(unknown[0], names)
    return {
        name: None
        if dims is None
        else tuple(sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in dims)
        for name, dims in declared.items()
    }


def unknown_dimension(name: str, names: Iterable[str]) -> ModelError:
    """Return the error for a bucket of a dimension that a model does not have."""
    return ModelError(
        f"the model has no dynamic dimension {name!r}; its dynamic dimensions are {_names(names)}",
        field="bucket",
        code="input-shape",
    )


def _check_request(name: str, dims: Dims, shape: tuple[int, ...]) -> None:
    request = f"input shape {name}={','.join(map(str, shape)).lower()}"
    if any(isinstance(size, bool) for size in shape):
        raise _wrong(
            f"{request} is a truth value, and the model declares the shape {_show(dims)}: only an "
            "input of one element has a value"
        )
    if any(size < 0 for size in shape):
        raise _wrong(f"{request}: every dimension must be at least 0")
    if dims is None:
        return
    if len(shape) != len(dims):
        raise _wrong(
            f"{request} has {len(shape)} dimensions, but the model declares {len(dims)}: "
            f"{_show(dims)}"
        )
    for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
        # Some exporters write 0 for an unknown dimension.
        if isinstance(dim, int) and dim not in (0, size):
            what = "its batch dimension" if axis == 0 else f"dimension {axis}"
            raise _wrong(
                f"{request}: the model declares {_show(dims)}, and {what} is fixed at {dim};"
                " only dynamic dimensions can be set, so export the model again to change it"
            )


def _shared_sizes(
    declared: Mapping[str, Dims], requested: Mapping[str, tuple[int, ...]]
) -> dict[str, int]:
    """Return the sizes of named dimensions that requests give."""
    sizes: dict[str, tuple[str, int]] = {}
    for name, shape in requested.items():
        for dim, size in zip(declared[name] or (), shape, strict=False):
            if not isinstance(dim, str) or dim == "?":
                continue
            other, other_size = sizes.setdefault(dim, (name, size))
            if other_size != size:
                raise _wrong(
                    f"inputs {other!r} and {name!r} share the dimension {dim!r}, "
                    f"but their shapes give it {other_size} and {size}"
                )
    return {dim: size for dim, (_, size) in sizes.items()}


def _wrong(text: str) -> ModelError:
    return ModelError(text, field="input", code="input-shape")


def _is_open(dims: Dims) -> bool:
    return dims is None or any(isinstance(dim, str) for dim in dims)


def _suggest(dims: Dims) -> str:
    dims = ("batch", 3, "height", "width") if dims is None else dims
    # A tensor of rank 4 is nearly always an image, any other most likely a sequence.
    size = 224 if len(dims) == 4 else 128
    guess = [d if isinstance(d, int) else 1 if axis == 0 else size for axis, d in enumerate(dims)]
    return ",".join(map(str, guess))


def _show(dims: Dims) -> str:
    return "unknown" if dims is None else f"({', '.join(map(str, dims))})"


def _names(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
