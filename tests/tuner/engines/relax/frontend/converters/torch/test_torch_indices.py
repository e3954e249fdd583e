"""Negative indices of torch count from the end, and values are broadcast to axes without one."""

from pathlib import Path

import torch

from tests.tuner.engines.relax.frontend.torch_programs import (
    Functions,
    check_results,
    save_program,
)
from tests.tuner.engines.relax.networks import UNOPTIMISED
from tuner.engines.relax.graph.pipeline import lower

_EVERY, _ORDER = slice(None), torch.tensor([2, 0])


def _written(x: torch.Tensor, index: object, values: torch.Tensor) -> torch.Tensor:
    copy = x.clone()
    copy[index] = values
    return copy


def _cube(x: torch.Tensor) -> torch.Tensor:
    return x[:, :, None] + x[0, :3]


def _column(x: torch.Tensor) -> torch.Tensor:
    return x[:, :1, None]


# TVM reads and writes what lies in front of the tensor, and reads behind written values.
_NEGATIVE: Functions = {
    "last element": lambda x, i: x[:, -1] + i[-1],
    "rows": lambda x, i: x[i],
    "columns": lambda x, i: x[:, i],
    "elements": lambda x, i: x[i, i],
    "elements of rows": lambda x, i: (
        *(_cube(x)[:, i[:2], _ORDER], _cube(x)[_ORDER, :, i[:2]]),
        _cube(x)[_ORDER[:, None], i[:2]],
    ),
    "constants": lambda x, i: x[:, torch.tensor([-1, 0, -2])] * i.sum(),
    "written": lambda x, i: x.index_put((i, i), x[0, :3]),
    "written to each row": lambda x, i: x.index_put((i[:, None], _ORDER), x[0, :2]),
    "added to each column": lambda x, i: x.index_put((i[:, None], _ORDER), x[:3, :1], True),
}
# Axes without an index lie in front of, behind and between the indices.
_BROADCAST: Functions = {
    "row": lambda x, i: _written(x, (_EVERY, i), x[0, :3]),
    "column": lambda x, i: _written(x, (_EVERY, i), x[:, :1]),
    "rows of a row": lambda x, i: _written(x, i, x[0]),
    "number": lambda x, i: _written(x, (i, i), x[1, 1]),
    "number at an element": lambda x, i: x.index_put((i[0], i[1]), x[1, 1]),
    "sum": lambda x, i: x.index_put((i, i), x[0, :3], accumulate=True),
    "in front": lambda x, _: _written(_cube(x), (_EVERY, _ORDER), x[:, 3:, None]),
    "around": lambda x, _: _written(_cube(x), (_EVERY, _ORDER, _EVERY), _column(x)),
    "in front of one": lambda x, _: _written(_cube(x), (_EVERY, _EVERY, _ORDER), x[0, :2]),
    "matrix": lambda x, _: _written(_cube(x), (_EVERY, _ORDER[:, None], _ORDER), _column(x)),
    "behind two": lambda x, _: _written(_cube(x), (_ORDER, _ORDER), x[0, :3]),
    "between": lambda x, _: _written(_cube(x), (_ORDER, _EVERY, _ORDER), x[0]),
    "behind": lambda x, _: _written(_cube(x), _ORDER, x[0, :3]),
}
# An element of two values, and elements without one, with and without their own.
_REDUCED: Functions = {
    how: lambda x, i, how=how: tuple(
        x.scatter_reduce(0, (i % 2)[:, None].expand(3, 5), x[1:] - 9, how, include_self=own)
        for own in (True, False)
    )
    for how in ("sum", "prod", "amax", "amin")
}
# Bags are empty, end with the indices, or have rows of padding.
_bags, _STARTS = torch.nn.functional.embedding_bag, torch.tensor([0, 2, 2])
_BAGS: Functions = {
    **{
        mode: lambda x, i, mode=mode: (
            _bags(i.abs() % 4, x, _STARTS, mode=mode),
            _bags((i.abs() % 4).expand(2, 3), x, mode=mode, padding_idx=2),
            _bags(i.abs() % 4, x, torch.tensor([0, 1, 3]), mode=mode, include_last_offset=True),
        )
        for mode in ("sum", "mean", "max")
    },
    "weighted": lambda x, i: _bags(
        i.abs() % 4, x, _STARTS, mode="sum", per_sample_weights=x[0, :3]
    ),
    "triangles": lambda x, i: (x[*torch.triu_indices(3, 4, 1)], i + torch.tril_indices(2, 2)[0]),
}


def test_elements_are_read_and_written_where_torch_does(tmp_path: Path) -> None:
    """Indices are an input of the program, and negative in part."""
    x, index = torch.arange(20.0).reshape(4, 5), torch.tensor([-1, 2, -4])

    check_results({**_NEGATIVE, **_BROADCAST, **_REDUCED, **_BAGS}, tmp_path, x, index)


def test_elements_of_one_place_are_all_added(tmp_path: Path) -> None:
    """Threads that add at once would lose some, so that there is one."""
    x, index = torch.zeros(2, 3), torch.zeros(100, dtype=torch.int64)
    sums: Functions = {
        "rows": lambda x, i: x.index_add(0, i, torch.ones(len(i), 3)),
        "columns": lambda x, i: x.index_add(1, i, torch.ones(2, len(i))),
        "elements": lambda x, i: x.index_put((i, i), torch.ones(len(i)), accumulate=True),
        "nothing": lambda x, i: x.index_add(0, i[:0], torch.ones(0, 3)) + 1,
    }

    check_results(sums, tmp_path, x, index)

    module = lower(save_program(sums, tmp_path, x, index), UNOPTIMISED, is_whole=True)
    assert "T.parallel" not in module.script()
