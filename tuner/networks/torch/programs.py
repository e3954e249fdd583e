"""Loading of exported programs, also of those with operators that other libraries register."""

import contextlib
import importlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from typing import Any

import torch


def grouped_product(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Return the product of each row with the matrix of its group; rows in no group become 0.

    Args:
        x: Rows in the order of their groups, of shape (n_rows, n_inputs).
        weights: Matrix of each group, of shape (n_groups, n_inputs, n_outputs).
        ends: Number of the row behind each group, of shape (n_groups,).
    """
    n_rows, n_groups = len(x), len(weights)
    row = torch.arange(n_rows, device=x.device)
    group = (row[:, None] >= ends).sum(1)
    known = group.clamp(max=n_groups - 1)
    # Either reads the matrices of all rows, or multiplies each row by all matrices.
    is_gathered = n_rows <= n_groups
    products = torch.bmm(x[:, None], weights[known])[:, 0] if is_gathered else None
    products = (x @ weights)[known, row] if products is None else products
    # Views of the result need the strides of the operator.
    return torch.where((group < n_groups)[:, None], products, 0.0).contiguous()


# Signature and definition of operators of libraries by their name.
_OPERATORS: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "transformers::grouped_mm_fallback": (
        "(Tensor input, Tensor weight, Tensor offs) -> Tensor",
        grouped_product,
    )
}
_QUANTISED = "tuner.networks.torch.torch_quantised"
# What torch raises where it logs the reason.
_LOGGED = "error when deserializing"
_registering = threading.Lock()


class LoadError(Exception):
    """The reason for which torch cannot load a program, which it logs."""


def load_program(path: str | PathLike[str]) -> Any:
    """Load a program, in which operators of other libraries are replaced by those of torch.

    Raises:
        LoadError: If torch cannot load it.
    """
    # A library that is imported later registers its operators itself.
    with _registering, contextlib.ExitStack() as stack:
        for name, (signature, define) in _OPERATORS.items():
            stack.enter_context(_registered(name, signature, define))
        table = {_overload(name): define for name, (_, define) in _OPERATORS.items()}
        try:
            program = _load(path)
        except LoadError as error:
            if "quantized_decomposed" not in str(error):
                raise
            # The module registers these operators.
            importlib.import_module(_QUANTISED)
            program = _load(path)
        if any(
            str(node.target).startswith("quantized_decomposed.") for node in program.graph.nodes
        ):
            table.update(importlib.import_module(_QUANTISED).QUANTISED)
        if any(node.target in table for node in program.graph.nodes):
            program = program.run_decompositions(table)
    return program


def _load(path: str | PathLike[str]) -> Any:
    with _logged() as reasons:
        try:
            return torch.export.load(path)
        # torch documents no exceptions for archives of other versions.
        except Exception as error:
            is_logged = reasons and _LOGGED in str(error)
            raise LoadError(str(reasons[-1] if is_logged else error)) from error


@contextlib.contextmanager
def _registered(name: str, signature: str, define: Callable[..., Any]) -> Iterator[None]:
    """Register an operator that no library has registered, for a time."""
    namespace, _, operator = name.partition("::")
    if hasattr(getattr(torch.ops, namespace), operator):
        yield
        return
    library = torch.library.Library(namespace, "FRAGMENT")
    try:
        library.define(operator + signature)
        library.impl(operator, define, "CompositeImplicitAutograd")
        yield
    finally:
        library._destroy()


def _overload(name: str) -> Any:
    namespace, _, operator = name.partition("::")
    return getattr(getattr(torch.ops, namespace), operator).default


@contextlib.contextmanager
def _logged() -> Iterator[list[Any]]:
    """Collect the errors that torch logs before it raises another one."""
    errors: list[Any] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info:
                errors.append(record.exc_info[1])

    logger, collector = logging.getLogger("torch.export"), Collector()
    propagates = logger.propagate
    handlers, logger.handlers, logger.propagate = logger.handlers, [collector], False
    try:
        yield errors
    finally:
        logger.handlers, logger.propagate = handlers, propagates
