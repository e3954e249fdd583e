"""Cost models: which unmeasured candidates are worth a trial."""

from tuner.cost_models.base import CostModel, TrainingSet
from tuner.cost_models.registry import DEFAULT_KIND, KINDS, create, load

__all__ = ["DEFAULT_KIND", "KINDS", "CostModel", "TrainingSet", "create", "load"]
