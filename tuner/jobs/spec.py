"""Options of a tuning job: the one list that every front end takes its options from."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from tuner.errors import RequestError

if TYPE_CHECKING:
    from tuner.engines.base import EvaluatorSettings

MAX_TRIALS = 10**9
MAX_SECS = 1e9
MAX_PRIORITY = 100
#: Budget of a job that limits neither trials nor seconds.
TRIALS_PER_TASK = 64
#: Key of the only network of a job in a mapping by network.
ONLY = ""

_MAX_INT = 2**31 - 1
# Options of the scheduler's objectives by the field that sets them.
_OBJECTIVE_OPTIONS = {
    "importance": "importance",
    "require_ms": "required_secs",
    "baseline_ms": "baseline_secs",
    "patience": "patience",
}
_BY_NETWORK = ("importance", "require_ms", "baseline_ms")

_MAX_NETWORKS, _MAX_NAME_CHARS = 64, 500
_MAX_SHOWN_CHARS = 100
_CONSTRAINTS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}

# Beginnings of pydantic's messages.
_SUBJECT = re.compile(r"^(\w+ should |Value error, )")


def _tags(value: object) -> object:
    """Split texts at spaces and commas, as people write tags."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, Sequence):
        return value
    return [tag for text in texts for tag in str(text).replace(",", " ").split()]


def refuse(text: str) -> PydanticCustomError:
    """Return the error of a validator; its text follows the name of the field."""
    # Without a context, braces in the text are not formatted.
    return PydanticCustomError("refused", text)


def _by_network(value: object) -> object:
    """Read texts such as ``NAME=5``; a number alone belongs to the only network."""
    if isinstance(value, (int, float, str)):
        value = [str(value)]
    if not isinstance(value, Sequence):
        return value
    numbers: dict[str, str] = {}
    for text in value:
        name, _, number = str(text).rpartition("=")
        if name in numbers:
            raise refuse(f"is given twice for {repr(name) if name else 'the network'}")
        numbers[name] = number
    return numbers


def _printable(name: str) -> str:
    if not name.isprintable():
        raise refuse(f"must be printable, got {name!r}")
    return name


def known(names: Iterable[str], name: str) -> str:
    """Return a name if it is one of those known, or refuse it."""
    if name not in names:
        raise refuse(f"{name!r} is unknown; choose one of {', '.join(names)}")
    return name


_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_NetworkName = Annotated[str, Field(max_length=_MAX_NAME_CHARS), AfterValidator(_printable)]
# Forms send texts, once per network.
ByNetwork = Annotated[
    dict[_NetworkName, _Positive],
    Field(max_length=_MAX_NETWORKS),
    BeforeValidator(_by_network),
    WithJsonSchema({"type": "array", "items": {"type": "string"}, "maxItems": _MAX_NETWORKS}),
]
# One text alone is a list of one.
Texts = Annotated[
    tuple[
        Annotated[str, Field(min_length=1, max_length=_MAX_NAME_CHARS), AfterValidator(_printable)],
        ...,
    ],
    Field(max_length=_MAX_NETWORKS),
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    WithJsonSchema({"type": "array", "items": {"type": "string"}, "maxItems": _MAX_NETWORKS}),
]
# Words by which people find jobs.
Tags = Annotated[
    tuple[Annotated[str, Field(max_length=50), AfterValidator(_printable)], ...],
    BeforeValidator(_tags),
    Field(max_length=20),
    WithJsonSchema({"type": "array", "items": {"type": "string", "maxLength": 50}, "maxItems": 20}),
]
Millis = Annotated[int, Field(ge=0, le=3_600_000)]
Timeout = Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)]


def as_request_error(error: ValidationError) -> RequestError:
    """Return the first error of a validation as the error of a field."""
    first = error.errors()[0]
    field, *inner = map(str, first["loc"])
    keys = [repr(key) for key in inner if key not in ("", "[key]")]
    return RequestError(" ".join([*keys, _text_of(first)]), field=field)


def _text_of(error: ErrorDetails) -> str:
    """Describe the problem of a value in a phrase that follows the name of its field."""
    if error["type"] in ("refused", "extra_forbidden"):
        return phrase_of(error)
    return f"{phrase_of(error)}, got {error['input']!r:.{_MAX_SHOWN_CHARS}}"


def phrase_of(error: ErrorDetails) -> str:
    """Describe a problem in a phrase that follows the name of the field, without its value."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return "is not an option"
    if kind == "missing":
        return "is missing"
    if kind in ("too_long", "string_too_long"):
        unit = "characters" if isinstance(error["input"], str) else "items"
        return f"must have at most {context['max_length']} {unit}"
    if kind in _CONSTRAINTS:
        word, key = _CONSTRAINTS[kind]
        limit = context[key]
        return f"must be {word} {int(limit) if limit == int(limit) else limit}"
    return _SUBJECT.sub(lambda begin: "must " if "should" in begin[0] else "", error["msg"])


class TuneSpec(BaseModel):
    """Options of a tuning job, valid as far as that can be said without its model.

    A mapping by network has the key ``""`` for the only network of a job.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    trials: Annotated[
        int | None,
        Field(
            ge=0,
            le=MAX_TRIALS,
            description="Budget of measurement trials; trials of earlier runs count. Without a "
            "budget of trials or seconds: 64 trials per task. On a service, 0 splits the network "
            "into tasks and measures nothing.",
        ),
    ] = None
    seconds: Annotated[
        float | None,
        Field(
            gt=0,
            le=MAX_SECS,
            allow_inf_nan=False,
            description="Budget of time, seconds, the final included; earlier runs of the job "
            "count.",
        ),
    ] = None
    trials_per_round: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_TRIALS,
            description="Trials measured per scheduling decision; by default 4 to 64, depending "
            "on the budget.",
        ),
    ] = None
    priority: Annotated[
        int | None,
        Field(
            ge=-MAX_PRIORITY,
            le=MAX_PRIORITY,
            description="Priority; each step doubles the share of device time. By default 0 for a "
            "new job; an existing job keeps its own.",
        ),
    ] = None
    task: Annotated[
        Texts,
        Field(
            description="Tune only the tasks with this text in their name or at the beginning of "
            "their hash, in a job of their own.",
            json_schema_extra={"default": []},
        ),
    ] = ()
    tag: Annotated[
        Tags,
        Field(
            description="Word by which the job is found in lists; the tags of a later request "
            "replace earlier ones.",
            json_schema_extra={"default": []},
        ),
    ] = ()
    objective: Annotated[
        str,
        Field(
            description="Objective to minimise: weighted_sum (of latencies), requirements, "
            "geometric_mean (of speedups) or early_stop.",
        ),
    ] = "weighted_sum"
    importance: Annotated[
        ByNetwork,
        Field(
            description="Factor of a network in weighted_sum, as [NAME=]FACTOR.",
            json_schema_extra={"default": []},
        ),
    ] = {}
    require_ms: Annotated[
        ByNetwork,
        Field(
            validate_default=True,
            description="Required latency of a network in requirements, as [NAME=]MS; a network "
            "that meets it gets no more trials.",
            json_schema_extra={"default": []},
        ),
    ] = {}
    baseline_ms: Annotated[
        ByNetwork,
        Field(
            description="Latency that the speedup of a network is relative to in geometric_mean, "
            "as [NAME=]MS.",
            json_schema_extra={"default": []},
        ),
    ] = {}
    patience: Annotated[
        int | None,
        Field(
            ge=1,
            le=_MAX_INT,
            description="Rounds without progress after which early_stop ends a task; 5 by default.",
        ),
    ] = None
    stop_below_ms: Annotated[
        float | None,
        Field(
            gt=0,
            le=MAX_SECS,
            allow_inf_nan=False,
            description="Stop when another minute is forecast to save less than this, "
            "milliseconds.",
        ),
    ] = None
    allocator: Annotated[
        str, Field(description="Allocator that spends the budget: gradient, tvm or round-robin.")
    ] = "gradient"
    cost_model: Annotated[
        str, Field(description="Cost model: xgb-ranking, xgb-throughput or random.")
    ] = "xgb-ranking"
    seed: Annotated[
        int,
        Field(
            ge=0,
            lt=2**63,
            description="Seed of the search and the scheduler; another seed is another job.",
        ),
    ] = 0
    number: Annotated[
        int, Field(ge=1, le=10**6, description="Minimum number of runs averaged into one sample.")
    ] = 1
    repeat: Annotated[
        int, Field(ge=3, le=10**4, description="Number of samples per candidate, at least 3.")
    ] = 3
    min_repeat_ms: Annotated[
        Millis,
        Field(description="Minimum time spent on the samples of a candidate, milliseconds."),
    ] = 10
    cache_flush: Annotated[
        bool, Field(description="Flush the private caches of the CPU before each sample.")
    ] = True
    cooldown_ms: Annotated[Millis, Field(description="Pause between samples, milliseconds.")] = 0
    run_timeout: Annotated[
        Timeout, Field(description="Time limit of running a candidate, seconds.")
    ] = 20.0
    build_timeout: Annotated[
        Timeout, Field(description="Time limit of building a candidate, seconds.")
    ] = 60.0

    @field_validator("objective", "allocator", "cost_model")
    @classmethod
    def _check_name(cls, name: str, info: ValidationInfo) -> str:
        # Imported here because numpy would double the time of `tuner --help`.
        if info.field_name == "objective":
            from scheduler.objectives import known_objectives

            return known(known_objectives(), name)
        if info.field_name == "allocator":
            from scheduler.allocators import ALLOCATORS

            return known(ALLOCATORS, name)
        from tuner import cost_models

        return known(cost_models.KINDS, name)

    @field_validator(*_OBJECTIVE_OPTIONS)
    @classmethod
    def _check_objective_option(cls, value: Any, info: ValidationInfo) -> Any:
        from scheduler.objectives import option_names

        objective, field = info.data.get("objective"), str(info.field_name)
        if objective == "requirements" and field == "require_ms" and not value:
            raise refuse("the objective requirements needs a latency for a network")
        if objective is None or value in ({}, None):
            return value
        options = option_names(objective)
        if _OBJECTIVE_OPTIONS[field] not in options:
            fields = [name for name, option in _OBJECTIVE_OPTIONS.items() if option in options]
            raise refuse(
                f"the objective {objective} does not take it, but {', '.join(fields) or 'nothing'}"
            )
        return value

    @field_validator("stop_below_ms")
    @classmethod
    def _check_unit(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and info.data.get("objective") == "geometric_mean":
            raise refuse("is in milliseconds, but geometric_mean is in speedups; leave it out")
        return value

    @property
    def stop_below_secs(self) -> float | None:
        """Threshold of ``stop_below_ms`` in seconds."""
        return None if self.stop_below_ms is None else self.stop_below_ms / 1e3

    @property
    def evaluator(self) -> "EvaluatorSettings":
        """Settings that candidates are timed with."""
        from tuner.engines.base import EvaluatorSettings

        return EvaluatorSettings(
            number=self.number,
            repeat=self.repeat,
            min_repeat_ms=self.min_repeat_ms,
            cache_flush=self.cache_flush,
            cooldown_ms=self.cooldown_ms,
            timeout_secs=self.run_timeout,
        )

    @property
    def objective_options(self) -> dict[str, Any]:
        """Options that were given, as :func:`scheduler.objectives.make_objective` takes them."""
        options: dict[str, Any] = {}
        for field, option in _OBJECTIVE_OPTIONS.items():
            value = getattr(self, field)
            if value in ({}, None):
                continue
            unit = 1e-3 if field.endswith("_ms") else 1.0
            options[option] = (
                {name: number * unit for name, number in value.items()}
                if field in _BY_NETWORK
                else value
            )
        return options

    def for_networks(self, names: Sequence[str]) -> "TuneSpec":
        """Return the spec with every mapping by network keyed by the names of a job's networks.

        Raises:
            RequestError: If a mapping names another network, or leaves open which one it means.
        """
        choices = ", ".join(names)
        update = {}
        for field in _BY_NETWORK:
            values: dict[str, float] = getattr(self, field)
            if ONLY in values:
                if len(names) > 1 or len(values) > 1:
                    raise RequestError(
                        f"name the network, as in NAME=VALUE; choose one of {choices}", field=field
                    )
                values = {names[0]: values[ONLY]}
            unknown = sorted(set(values) - set(names))
            if unknown:
                raise RequestError(
                    f"{unknown[0]!r} is not a network of this job; choose one of {choices}",
                    field=field,
                )
            update[field] = values
        return self.model_copy(update=update)

    def with_default_budget(self, n_tasks: int) -> "TuneSpec":
        """Return the spec with a limit: 64 trials per task if it has none."""
        if self.trials or self.seconds:
            return self
        return self.model_copy(update={"trials": TRIALS_PER_TASK * n_tasks})

    def require_trials(self) -> None:
        """Refuse a budget of 0 trials, which is for services only.

        Raises:
            RequestError: If the budget is 0 trials.
        """
        if self.trials == 0:
            raise RequestError("must be at least 1, got 0", field="trials")


def make_spec(fields: Mapping[str, object]) -> TuneSpec:
    """Build a spec from fields that a user gave.

    Raises:
        RequestError: If a field is unknown or wrong; the error names it.
    """
    try:
        return TuneSpec.model_validate(dict(fields))
    except ValidationError as error:
        raise as_request_error(error) from error
