"""The form that asks for a network to be tuned: its fields, and what they mean."""

from typing import Annotated, Any, Literal

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import FormData, UploadFile

from api.errors import Problem
from api.schemas import MAX_ID, MAX_SECS, Priority, Seconds, Text, Trials
from tuner.cli.options import parse_inputs, parse_numbers
from tuner.jobs.goals import Goal
from tuner.jobs.preparation import ModelRequest
from tuner.jobs.requests import MOST_TRIALS, TuneRequest

_LISTS = ("zoo", "input", "importance", "require_ms", "baseline_ms")
_MOST_MODELS = 16
_Line = Annotated[Text, Field(max_length=500)]
_Lines = Annotated[list[_Line], Field(max_length=64)]
_Millis = Annotated[int, Field(ge=0, le=3_600_000)]


class TuneForm(BaseModel):
    """What may be asked for beside the model files; all of it is optional."""

    model_config = ConfigDict(extra="forbid")

    zoo: Annotated[
        _Lines, Field(description="Built-in networks, such as `resnet-18?image=64`.")
    ] = []
    target: Annotated[_Line, Field(description="What to compile for.")] = "llvm"
    input: Annotated[
        _Lines, Field(description="`NAME=1,3,224,224`: shape of a dynamic input.")
    ] = []
    trials: Annotated[
        int | None,
        Field(ge=0, le=MOST_TRIALS, description="0 splits into tasks, and measures nothing."),
    ] = None
    seconds: Seconds | None = None
    trials_per_round: Trials | None = None
    objective: _Line = "weighted_sum"
    importance: Annotated[_Lines, Field(description="`[NAME=]FACTOR`.")] = []
    require_ms: Annotated[_Lines, Field(description="`[NAME=]MS`.")] = []
    baseline_ms: Annotated[_Lines, Field(description="`[NAME=]MS`.")] = []
    patience: Annotated[int | None, Field(ge=1, le=MAX_ID)] = None
    allocator: _Line = "gradient"
    priority: Annotated[
        Priority | None, Field(description="Of a new job 0; one that exists keeps its own.")
    ] = None
    stop_below_ms: Annotated[float | None, Field(gt=0, le=MAX_SECS)] = None
    cost_model: _Line = "xgb-ranking"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    random_weights: Annotated[
        int | None, Field(ge=0, lt=2**31, description="Seed of weights that replace the model's.")
    ] = None
    name: Annotated[Text, Field(max_length=200, description="For people.")] = ""
    number: Annotated[int, Field(ge=1, le=10**6)] = 1
    repeat: Annotated[int, Field(ge=1, le=10**4)] = 3
    min_repeat_ms: _Millis = 10
    cache_flush: bool = True
    cooldown_ms: _Millis = 0
    run_timeout: Annotated[float, Field(gt=0, le=3600)] = 20.0
    build_timeout: Annotated[float, Field(gt=0, le=3600)] = 60.0

    def request(self, uploads: list[tuple[str, str]]) -> TuneRequest:
        """Return what is asked for.

        Args:
            uploads: Reference and name of each uploaded model.

        Raises:
            RequestError: If an option cannot be read.
        """
        shapes = parse_inputs(self.input)
        named = [(f"zoo:{zoo.removeprefix('zoo:')}", "") for zoo in self.zoo]
        first, *more = [
            ModelRequest(reference, self.target, shapes, self.random_weights, name)
            for reference, name in (*uploads, *named)
        ]
        return TuneRequest(
            model=first,
            more_models=tuple(more),
            trials=self.trials,
            seconds=self.seconds,
            trials_per_round=self.trials_per_round,
            allocator=self.allocator,
            goal=Goal(
                self.objective,
                importance=parse_numbers("--importance", self.importance),
                required_secs=parse_numbers("--require-ms", self.require_ms, unit=1e-3),
                baseline_secs=parse_numbers("--baseline-ms", self.baseline_ms, unit=1e-3),
                patience=self.patience,
            ),
            priority=self.priority,
            least_gain_secs=None if self.stop_below_ms is None else self.stop_below_ms / 1e3,
            cost_model=self.cost_model,
            evaluator={
                "number": self.number,
                "repeat": self.repeat,
                "min_repeat_ms": self.min_repeat_ms,
                "cache_flush": self.cache_flush,
                "cooldown_ms": self.cooldown_ms,
                "timeout_secs": self.run_timeout,
            },
            build_timeout_secs=self.build_timeout,
            seed=self.seed,
        )


def read_form(form: FormData) -> tuple[TuneForm, list[UploadFile]]:
    """Return the options and the files of a form; an empty text is an option left out.

    Raises:
        RequestValidationError: If an option is wrong or unknown.
        Problem: If it has no model, or too many.
    """
    values: dict[str, Any] = {}
    files: list[UploadFile] = []
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            if name != "model":
                raise Problem("invalid", "a file belongs into the field 'model'")
            files.append(value)
        elif name in _LISTS:
            values.setdefault(name, []).extend([value] if value else [])
        elif name in values:
            raise Problem("invalid", f"{name[:50]!r} is given twice")
        elif value:
            values[name] = value
    # What a browser sends for a file that nobody chose.
    files = [file for file in files if file.filename or file.size]
    try:
        options = TuneForm.model_validate(values)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error
    if not 1 <= len(files) + len(options.zoo) <= _MOST_MODELS:
        raise Problem(
            "invalid",
            f"a job takes 1 to {_MOST_MODELS} models, got {len(files) + len(options.zoo)}",
            advice="Send a .onnx file as 'model', or the name of a built-in network as 'zoo'.",
        )
    return options, files


def body_schema() -> dict[str, Any]:
    """Describe the form for the OpenAPI document."""
    schema = TuneForm.model_json_schema()
    models = {
        "type": "array",
        "maxItems": _MOST_MODELS,
        "items": {"type": "string", "format": "binary"},
        "description": "An .onnx file; several are tuned in one job.",
    }
    schema["properties"] = {"model": models, **schema["properties"]}
    lists = {name: {"style": "form", "explode": True} for name in _LISTS}
    return {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": schema,
                "encoding": {"model": {"contentType": "application/octet-stream"}, **lists},
            }
        },
    }


Kind = Literal["json", "csv", "text"]
