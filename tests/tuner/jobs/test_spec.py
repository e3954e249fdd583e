"""Options of a job: defaults, bounds, and the fields that errors name."""

import math
from typing import Any

import pytest
from pydantic import ValidationError

from scheduler import allocators
from scheduler.objectives import known_objectives
from tuner import cost_models
from tuner.engines.base import EvaluatorSettings
from tuner.errors import RequestError
from tuner.jobs.spec import ONLY, TuneSpec, make_spec


def test_defaults_are_those_of_the_parts_that_take_them() -> None:
    """A spec repeats the defaults, because importing their modules would slow down ``--help``."""
    spec = TuneSpec()

    assert spec.evaluator == EvaluatorSettings()
    assert spec.allocator in allocators.ALLOCATORS
    assert spec.objective in known_objectives()
    assert spec.cost_model in cost_models.KINDS
    assert spec.objective_options == {}
    assert spec.stop_below_secs is None


@pytest.mark.parametrize("field", ["objective", "allocator", "cost_model"])
def test_descriptions_name_every_choice(field: str) -> None:
    """Users read the descriptions in --help and in the OpenAPI document."""
    known = {
        "objective": known_objectives(),
        "allocator": allocators.ALLOCATORS,
        "cost_model": tuple(cost_models.KINDS),
    }[field]
    description = TuneSpec.model_fields[field].description or ""

    assert [name for name in known if name not in description] == []


@pytest.mark.parametrize("name", TuneSpec.model_fields)
def test_every_field_has_a_description(name: str) -> None:
    """A description begins with a capital and ends with a full stop."""
    description = TuneSpec.model_fields[name].description or ""

    assert description[:1].isupper()
    assert description.endswith(".")


@pytest.mark.parametrize(
    ("fields", "field", "text"),
    [
        ({"trials": -1}, "trials", "must be at least 0, got -1"),
        ({"trials": 10**10}, "trials", "must be at most 1000000000, got 10000000000"),
        ({"trials": "many"}, "trials", "must be a valid integer"),
        ({"seconds": 0.0}, "seconds", "must be above 0, got 0.0"),
        ({"seconds": math.inf}, "seconds", "must be a finite number, got inf"),
        ({"seconds": math.nan}, "seconds", "must be a finite number, got nan"),
        ({"trials_per_round": 0}, "trials_per_round", "must be at least 1, got 0"),
        ({"priority": 101}, "priority", "must be at most 100, got 101"),
        ({"objective": "fame"}, "objective", "'fame' is unknown; choose one of early_stop, "),
        ({"allocator": "best"}, "allocator", "choose one of gradient, tvm, round-robin"),
        ({"cost_model": "oracle"}, "cost_model", "choose one of"),
        ({"seed": -1}, "seed", "must be at least 0"),
        ({"seed": 2**63}, "seed", f"must be below {2**63}"),
        ({"number": 0}, "number", "must be at least 1"),
        ({"repeat": 2}, "repeat", "must be at least 3, got 2"),
        ({"min_repeat_ms": -1}, "min_repeat_ms", "must be at least 0"),
        ({"cooldown_ms": -1}, "cooldown_ms", "must be at least 0"),
        ({"run_timeout": 0}, "run_timeout", "must be above 0, got 0"),
        ({"build_timeout": math.inf}, "build_timeout", "must be a finite number"),
        ({"stop_below_ms": 0.0}, "stop_below_ms", "must be above 0"),
        ({"patience": 3}, "patience", "objective weighted_sum does not take it, but importance"),
        ({"objective": "early_stop", "importance": 2.0}, "importance", "but patience"),
        ({"objective": "requirements"}, "require_ms", "needs a latency"),
        (
            {"objective": "geometric_mean", "stop_below_ms": 1.0},
            "stop_below_ms",
            "geometric_mean is in speedups",
        ),
        ({"importance": {"net": 0.0}}, "importance", "'net' must be above 0, got 0.0"),
        ({"importance": 0.0}, "importance", "must be above 0, got '0.0'"),
        ({"importance": ["net=x"]}, "importance", "'net' must be a valid number"),
        ({"importance": ["a=1", "a=2"]}, "importance", "is given twice for 'a'"),
        ({"importance": ["1", "2"]}, "importance", "is given twice for the network"),
        ({"importance": {"a\0": 1.0}}, "importance", "must be printable"),
        ({"colour": "red"}, "colour", "is not an option"),
    ],
)
def test_an_error_names_the_field_that_is_wrong(
    fields: dict[str, Any], field: str, text: str
) -> None:
    """The text of the error contains no name of a front end."""
    with pytest.raises(RequestError) as caught:
        make_spec(fields)

    assert caught.value.field == field
    assert text in caught.value.text
    assert str(caught.value) == f"{field}: {caught.value.text}"
    assert "--" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"net": 5}, {"net": 5.0}),
        (5.0, {ONLY: 5.0}),
        ("5", {ONLY: 5.0}),
        (["5"], {ONLY: 5.0}),
        (["a=b=5", "c=0.5"], {"a=b": 5.0, "c": 0.5}),
        ([], {}),
    ],
)
def test_values_by_network_are_mappings_or_texts(value: object, expected: dict[str, float]) -> None:
    """A number alone belongs to the only network."""
    assert make_spec({"importance": value}).importance == expected


def test_a_spec_does_not_change() -> None:
    """A spec is frozen, and a default budget makes a copy."""
    spec = TuneSpec()

    with pytest.raises(ValidationError):
        spec.trials = 3
    assert spec.with_default_budget(4).trials == 256
    assert spec.trials is None


@pytest.mark.parametrize("limit", [{"trials": 7}, {"seconds": 3.0}])
def test_a_limit_is_the_whole_budget(limit: dict[str, Any]) -> None:
    """A spec with a limit gets no default budget."""
    assert make_spec(limit).with_default_budget(4) == make_spec(limit)


def test_latencies_become_seconds() -> None:
    """The objective and the session compute in seconds."""
    spec = TuneSpec(objective="requirements", require_ms={"net": 5.0}, stop_below_ms=0.5)

    assert spec.objective_options == {"required_secs": {"net": 5.0e-3}}
    assert spec.stop_below_secs == 5e-4


def test_a_budget_of_no_trials_is_refused_where_trials_are_measured() -> None:
    """Only a service accepts 0 trials, to split a network into tasks."""
    with pytest.raises(RequestError, match="at least 1") as caught:
        TuneSpec(trials=0).require_trials()

    assert caught.value.field == "trials"
    TuneSpec().require_trials()
