"""The calls that a subgraph may contain: arithmetic, and nothing that leaves the kernel.

The IR of a subgraph may come from a log. TVM compiles a call of any symbol of the C library, of
any packed function, or a pragma with code in C or LLVM's IR; none of these is part of a subgraph.
"""

from collections.abc import Iterable

from tuner.errors import WorkError

#: Names of the operators of TIR, without the prefix that differs between versions of TVM.
ALLOWED_CALLS = frozenset(
    (
        *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh"),
        *("sin", "sinh", "tan", "tanh", "sigmoid", "erf"),
        *("exp", "exp2", "exp10", "log", "log2", "log10", "log1p", "pow", "sqrt", "rsqrt"),
        *("fabs", "abs", "floor", "ceil", "trunc", "round", "nearbyint", "fmod", "fma"),
        *("copysign", "hypot", "ldexp", "nextafter", "isnan", "isinf", "isfinite"),
        *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "shift_left", "shift_right"),
        *("clz", "popcount", "ctpop", "q_multiply_shift", "q_multiply_shift_per_axis"),
        *("if_then_else", "likely", "assume", "reinterpret", "large_uint_imm", "undef"),
        *("max_value", "min_value", "infinity", "ret"),
    )
)
# Pragmas with code of their own; TVM also looks for them in the annotations of loops and blocks.
_CODE = "import_"


def check_calls(names: Iterable[str]) -> None:
    """Check the operators that a subgraph calls.

    Args:
        names: Names such as ``tirx.exp``.

    Raises:
        WorkError: If one is not allowed; the message names it.
    """
    for name in names:
        if name.rpartition(".")[2] not in ALLOWED_CALLS:
            raise WorkError(f"a subgraph may not call {name!r}: its definition is not trusted")


def check_annotations(keys: Iterable[str]) -> None:
    """Check the annotations and attributes of a subgraph, or of a trace.

    Raises:
        WorkError: If one contains code; the message names it.
    """
    for key in keys:
        if _CODE in key:
            raise WorkError(f"a subgraph may not have {key!r}: its definition is not trusted")
