"""Kinds of data types, by their names."""


def is_float(dtype: str) -> bool:
    """Return True for floating-point types."""
    return dtype.startswith(("float", "bfloat"))


def is_bool(dtype: str) -> bool:
    """Return True for truth values, whose type TVM also writes as an unsigned integer."""
    return dtype in ("bool", "uint1")
