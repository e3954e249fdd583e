"""Cost models by name."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from tuner.cost_models import blobs
from tuner.cost_models.base import CostModel
from tuner.cost_models.random import RandomModel
from tuner.cost_models.xgb import XGBModel, XGBSettings


class Kind(NamedTuple):
    """The two ways to come by a model."""

    create: Callable[[int], CostModel]
    load: Callable[[bytes], CostModel]


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "random": Kind(RandomModel, RandomModel.load),
        "xgb-ranking": Kind(
            lambda seed: XGBModel(XGBSettings(objective="ranking", seed=seed)), XGBModel.load
        ),
        "xgb-throughput": Kind(
            lambda seed: XGBModel(XGBSettings(objective="throughput", seed=seed)), XGBModel.load
        ),
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
    """Restore a model of whatever kind it was saved as.

    Raises:
        ValueError: If the blob is damaged, or has an unknown kind or version.
    """
    kind, _ = blobs.unseal(blob)
    return _find(kind).load(blob)


def _find(kind: str) -> Kind:
    if kind not in KINDS:
        raise ValueError(f"unknown cost model {kind!r}: want one of {', '.join(KINDS)}")
    return KINDS[kind]
