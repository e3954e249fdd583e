"""Turns the shapes a model declares and the shapes a user asks for into fixed ones."""

from collections.abc import Iterable, Mapping

from tuner.errors import ModelError

#: One declared shape: a number, or the name of a dynamic dimension ("?" without one); None if
#: even the rank is open.
Dims = tuple[int | str, ...] | None


def fix_shapes(
    declared: Mapping[str, Dims], requested: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Return the shape of every input, in declared order.

    Args:
        declared: Each input's shape as the model gives it.
        requested: Shapes from the user; they may set dynamic dimensions only.

    Raises:
        ModelError: If a request fits no input or contradicts the model, if two inputs disagree
            on a named dimension, or if a dynamic input has no request.
    """
    for name, shape in requested.items():
        if name not in declared:
            raise ModelError(f"the model has no input {name!r}; its inputs are {_names(declared)}")
        _check_request(name, declared[name], shape)
    missing = [name for name, dims in declared.items() if _is_open(dims) and name not in requested]
    if missing:
        shown = " and ".join(f"{name!r} with shape {_show(declared[name])}" for name in missing)
        flags = " ".join(f"--input {name}={_suggest(declared[name])}" for name in missing)
        raise ModelError(f"the shape must be fixed for input {shown}; for example: {flags}")
    _check_symbols(declared, requested)
    # An input without a request has numbers only, or it would be missing.
    return {
        name: requested[name] if name in requested else tuple(int(dim) for dim in dims or ())
        for name, dims in declared.items()
    }


def _check_request(name: str, dims: Dims, shape: tuple[int, ...]) -> None:
    flag = f"--input {name}={','.join(map(str, shape))}"
    if any(size < 1 for size in shape):
        raise ModelError(f"{flag}: every dimension must be at least 1")
    if dims is None:
        return
    if len(shape) != len(dims):
        raise ModelError(
            f"{flag} has {len(shape)} dimensions, but input {name!r} has {len(dims)}: {_show(dims)}"
        )
    for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
        if isinstance(dim, int) and dim != size:
            what = "its batch dimension" if axis == 0 else f"dimension {axis}"
            raise ModelError(
                f"{flag}: input {name!r} has the shape {_show(dims)}, and {what} is fixed at {dim};"
                " only dynamic dimensions can be set, so export the model again to change it"
            )


def _check_symbols(declared: Mapping[str, Dims], requested: Mapping[str, tuple[int, ...]]) -> None:
    seen: dict[str, tuple[str, int]] = {}
    for name, shape in requested.items():
        for dim, size in zip(declared[name] or (), shape, strict=False):
            if not isinstance(dim, str) or dim == "?":
                continue
            other, known = seen.setdefault(dim, (name, size))
            if known != size:
                raise ModelError(
                    f"inputs {other!r} and {name!r} share the dimension {dim!r}, "
                    f"but --input gives it {known} and {size}"
                )


def _is_open(dims: Dims) -> bool:
    return dims is None or any(isinstance(dim, str) for dim in dims)


def _suggest(dims: Dims) -> str:
    dims = ("batch", 3, "height", "width") if dims is None else dims
    # Rank 4 is nearly always an image; anything else is most likely a sequence.
    size = 224 if len(dims) == 4 else 128
    guess = [d if isinstance(d, int) else 1 if axis == 0 else size for axis, d in enumerate(dims)]
    return ",".join(map(str, guess))


def _show(dims: Dims) -> str:
    return "unknown" if dims is None else f"({', '.join(map(str, dims))})"


def _names(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
