"""The commands as functions."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

import tuner
from tests.engines import toy
from tests.tuner.networks.models import relu_model
from tuner.context import SettingOverrides
from tuner.errors import RequestError


@pytest.fixture
def place(tmp_path: Path) -> SettingOverrides:
    """Where nothing was tuned yet."""
    return {"data_dir": tmp_path / "data", "engine": toy.NAME}


def test_a_network_is_split_into_tasks_with_their_definitions(
    place: SettingOverrides, capsys: pytest.CaptureFixture[str]
) -> None:
    """One a workload, and they are shown below the table."""
    split = tuner.extract("zoo:mlp", definitions=True, **place)
    split.show()

    workloads = [workload for workload, *_ in split.tasks]
    assert sorted(split.definitions) == sorted(workloads)
    assert all(each["definition"] for each in split.as_json()["tasks"])
    assert split.definitions[workloads[0]] in capsys.readouterr().out


def test_shapes_are_sequences_of_integers(place: SettingOverrides, tmp_path: Path) -> None:
    """Lists, and what arrays are made of; no set of shapes is the same as none given."""
    path = tmp_path / "model.onnx"
    path.write_bytes(relu_model("n", 8).SerializeToString())

    split = tuner.extract(path, inputs={"data": [np.int64(2), 8]}, **place)

    assert split.tasks == tuner.extract(path, inputs={"data": (2, 8)}, **place).tasks
    with pytest.raises(RequestError, match="the shape must be fixed for input 'data'"):
        tuner.build(path, tmp_path / "model.lib", inputs=[], **place)


def test_definitions_are_not_there_unasked(place: SettingOverrides) -> None:
    """Nor in JSON."""
    split = tuner.extract("zoo:mlp", **place)

    assert not split.definitions
    assert "definition" not in split.as_json()["tasks"][0]


def test_tuning_goes_on_where_it_was(place: SettingOverrides) -> None:
    """The budget counts what was spent before."""
    first = tuner.tune("zoo:mlp", trials=8, **place)
    again = tuner.tune("zoo:mlp", trials=12, **place)

    assert (first.measured_now, again.measured_now, again.trials) == (8, 4, 12)


def test_a_cell_of_a_notebook_tunes(place: SettingOverrides) -> None:
    """Which runs inside a loop."""

    async def cell() -> int:
        return tuner.tune("zoo:mlp", trials=4, **place).measured_now

    assert asyncio.run(cell()) == 4


def test_a_library_is_built_from_the_best_records(place: SettingOverrides, tmp_path: Path) -> None:
    """Every task that was tuned has one."""
    tuner.tune("zoo:mlp", trials=16, **place)

    built = tuner.build("zoo:mlp", tmp_path / "mlp.lib", **place)

    assert built.n_fallbacks == 0
    assert (tmp_path / "mlp.lib" / "manifest.json").is_file()


def test_a_request_that_is_wrong_says_so(place: SettingOverrides, tmp_path: Path) -> None:
    """As the command does."""
    with pytest.raises(RequestError, match=r"no zoo network .nonsense."):
        tuner.extract("zoo:nonsense", **place)
    with pytest.raises(RequestError, match="unknown allocator 'best'"):
        tuner.tune("zoo:mlp", allocator="best", **place)
    with pytest.raises(TypeError, match="name a model"):
        tuner.tune(**place)
    with pytest.raises(RequestError, match=r"none\.lib"):
        tuner.evaluate(tmp_path / "none.lib", **place)
