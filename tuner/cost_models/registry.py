"""Cost models by name."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Literal, NamedTuple

from tuner.cost_models import blobs
from tuner.cost_models.base import CostModel
from tuner.cost_models.random import RandomModel


class Kind(NamedTuple):
    """Functions that create and load a kind of model."""

    create: Callable[[int], CostModel]
    load: Callable[[bytes], CostModel]


def _create_xgb(objective: Literal["ranking", "throughput"], seed: int) -> CostModel:
    # Imported on demand: a process that only checks names does not need numpy.
    from tuner.cost_models.xgb import XGBModel, XGBSettings

    return XGBModel(XGBSettings(objective=objective, seed=seed))


def _load_xgb(blob: bytes) -> CostModel:
    from tuner.cost_models.xgb import XGBModel

    return XGBModel.load(blob)


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "random": Kind(RandomModel, RandomModel.load),
        "xgb-ranking": Kind(partial(_create_xgb, "ranking"), _load_xgb),
        "xgb-throughput": Kind(partial(_create_xgb, "throughput"), _load_xgb),
    }
)
DEFAULT_KIND = "xgb-ranking"


def create(kind: str, seed: int) -> CostModel:
    """Create an untrained model.

    Raises:
        ValueError: If the kind is unknown, or the seed lies outside [0, 2**63).
    """
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed must lie in [0, 2**63), got {seed}")
    return _find(kind).create(seed)


def load(blob: bytes) -> CostModel:
    """Restore a saved model of any kind.

    Raises:
        ValueError: If the blob is damaged, or has an unknown kind or version.
    """
    kind, _ = blobs.unseal(blob)
    return _find(kind).load(blob)


def _find(kind: str) -> Kind:
    if kind not in KINDS:
        raise ValueError(f"unknown cost model {kind!r}: use one of {', '.join(KINDS)}")
    return KINDS[kind]
