"""Models are created by name, and errors list the valid names."""

import pytest

from tuner import cost_models
from tuner.cost_models import blobs
from tuner.cost_models.random import RandomModel
from tuner.cost_models.xgb import XGBModel, XGBSettings


def test_unknown_kind_lists_the_known() -> None:
    """The error lists the valid kinds."""
    with pytest.raises(ValueError, match="'mlp': use one of random, xgb-ranking, xgb-throughput"):
        cost_models.create("mlp", 0)


def test_default_kind_is_known() -> None:
    """The default can be created."""
    assert cost_models.create(cost_models.DEFAULT_KIND, 0).kind == cost_models.DEFAULT_KIND


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_seed_outside_its_range_is_refused(seed: int) -> None:
    """A seed that some generator cannot use is refused."""
    with pytest.raises(ValueError, match="seed must lie in"):
        cost_models.create("random", seed)


def test_blob_of_unknown_kind_lists_the_known() -> None:
    """The kind of a later release is named."""
    with pytest.raises(ValueError, match="'mlp': use one of random"):
        cost_models.load(blobs.seal("mlp", b"weights"))


def test_blob_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both versions are in the message."""
    monkeypatch.setattr(blobs, "VERSION", 9)
    blob = RandomModel(0).save()
    monkeypatch.undo()

    with pytest.raises(ValueError, match="version 9, only 1 is supported"):
        cost_models.load(blob)


def test_blob_of_another_kind_is_refused() -> None:
    """A class loads its own blobs only."""
    xgb = XGBModel(XGBSettings())
    with pytest.raises(ValueError, match="expected a saved random model, got 'xgb-ranking'"):
        RandomModel.load(xgb.save())
    with pytest.raises(ValueError, match="expected a saved xgb model, got 'random'"):
        XGBModel.load(RandomModel(0).save())
