"""Cost models that rank unmeasured candidates."""

from tuner.cost_models.base import CostModel, TrainingSet
from tuner.cost_models.registry import DEFAULT_KIND, KINDS, create, load

__all__ = ["DEFAULT_KIND", "KINDS", "CostModel", "TrainingSet", "create", "load"]
