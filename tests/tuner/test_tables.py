"""Results as HTML tables and data frames."""

import sys
from datetime import UTC, datetime

import pytest

from tuner.errors import RequestError
from tuner.schemas import BestView
from tuner.tables import Rows


def best(latency_secs: float, name: str = "dense") -> BestView:
    """Return a best record."""
    return BestView(
        record=7,
        task=1,
        workload="0" * 64,
        name=name,
        target_id=1,
        latency_secs=latency_secs,
        confirmed=True,
        created=datetime(2026, 1, 2, tzinfo=UTC),
        gflops=12.5,
        target="llvm",
    )


def test_names_are_escaped() -> None:
    """Names are those of models, which anybody writes."""
    html = Rows([best(1e-3, "<script>")])._repr_html_()

    assert "&lt;script&gt;" in html
    assert "<script>" not in html


def test_empty_and_long_columns_are_left_out_and_many_rows_are_counted() -> None:
    """The hash of the workload does not fit into a cell, and no record has an origin."""
    html = Rows([best(1e-3)] * 32)._repr_html_()

    assert "<th>latency_secs</th>" in html
    assert "workload" not in html
    assert "origin" not in html
    assert "and 2 more" in html
    assert Rows()._repr_html_()


def test_a_data_frame_has_a_row_for_each_item() -> None:
    """Columns are named like the fields, in seconds."""
    pytest.importorskip("pandas")

    frame = Rows([best(1e-3), best(2e-3)]).to_pandas()

    assert frame.latency_secs.tolist() == [1e-3, 2e-3]
    assert frame.created[0] == datetime(2026, 1, 2, tzinfo=UTC)
    assert Rows().to_pandas().empty


def test_a_missing_pandas_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says how to install the extra."""
    monkeypatch.setitem(sys.modules, "pandas", None)

    with pytest.raises(RequestError, match=r"extra pandas: pip install 'subgraph-tuner\[pandas\]'"):
        Rows([best(1e-3)]).to_pandas()
