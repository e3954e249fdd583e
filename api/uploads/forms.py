"""Form that submits a network for tuning, as REST and the dashboard receive it."""

from typing import Annotated, Any

from fastapi.exceptions import RequestValidationError
from pydantic import Field, ValidationError
from starlette.datastructures import FormData, UploadFile

from api.documents.schemas import Text
from api.errors import wrong_field
from api.webhooks.addresses import MAX_URL_CHARS
from tuner.errors import RequestError
from tuner.jobs.buckets import parse_padded
from tuner.jobs.requests import ModelRequest, TuneRequest, in_sets, parse_input_sets
from tuner.jobs.spec import TuneSpec

_LISTS = (
    *("zoo", "input", "bucket", "mask"),
    *("task", "tag", "importance", "require_ms", "baseline_ms"),
)
_MAX_MODELS = 16
_Line = Annotated[Text, Field(max_length=500)]
_Lines = Annotated[list[_Line], Field(max_length=64)]


class TuneForm(TuneSpec):
    """Fields of the form besides the model files; all are optional."""

    zoo: Annotated[
        _Lines, Field([], description="Built-in networks, such as `resnet-18?image=64`.")
    ]
    target: Annotated[_Line, Field(description="Target to compile for.")] = "llvm"
    input: Annotated[
        _Lines,
        Field(
            [],
            description="`NAME=1,3,224,224`: shape of a dynamic input; again for another set. "
            "`NAME=16000` or `NAME=true`: value of an input of one element.",
        ),
    ]
    bucket: Annotated[
        _Lines,
        Field([], description="`DIM=1,4,16`: sizes of a dynamic dimension; `DIM` or `auto` alone."),
    ]
    mask: Annotated[
        _Lines, Field([], description="`INPUT` or `INPUT=VALUE`: input that marks padding.")
    ]
    random_weights: Annotated[
        int | None, Field(ge=0, lt=2**31, description="Seed of weights that replace the model's.")
    ] = None
    name: Annotated[Text, Field(max_length=200, description="Name of the job for people.")] = ""
    webhook: Annotated[
        Text,
        Field(max_length=MAX_URL_CHARS, description="Address that hears of the end of the job."),
    ] = ""
    models_of: Annotated[
        int | None,
        Field(
            ge=1,
            lt=2**63,
            description="Job whose uploaded models are tuned again, unless a file is sent.",
        ),
    ] = None

    def request(self, uploads: list[tuple[str, str]]) -> TuneRequest:
        """Return the request that the form makes.

        Args:
            uploads: Reference and name of each uploaded model.

        Raises:
            RequestError: If an input shape or a bucket cannot be read.
        """
        sets, padded = parse_input_sets(self.input), parse_padded(self.bucket, self.mask)
        zoo = [(f"zoo:{name.removeprefix('zoo:')}", "") for name in self.zoo]
        models = tuple(
            each
            for reference, name in (*uploads, *zoo)
            for each in in_sets(
                ModelRequest(
                    reference,
                    self.target,
                    {},
                    self.random_weights,
                    name,
                    padded.buckets,
                    padded.masks,
                ),
                sets,
            )
        )
        if len(models) > _MAX_MODELS:
            raise RequestError(
                f"a job takes 1 to {_MAX_MODELS} networks, got {len(models)}", field="input"
            )
        return TuneRequest(models, TuneSpec(**self.model_dump(include=set(TuneSpec.model_fields))))


def read_form(form: FormData) -> tuple[TuneForm, list[UploadFile]]:
    """Return the options and the files of a form; an empty text stands for a field left out.

    Raises:
        RequestValidationError: If a field is wrong or unknown.
        Problem: If the form has no model, or too many.
    """
    values: dict[str, Any] = {}
    files: list[UploadFile] = []
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            if name != "model":
                raise wrong_field("model", f"a file was sent as {name[:50]!r}; send it as 'model'")
            files.append(value)
        elif name in _LISTS:
            values.setdefault(name, []).extend([value] if value else [])
        elif name in values:
            raise wrong_field(name[:50], "is given twice; send it once")
        elif value:
            values[name] = value
    # Browsers send an empty part for a file that was not chosen.
    files = [file for file in files if file.filename or file.size]
    try:
        options = TuneForm.model_validate(values)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error
    if files:
        options = options.model_copy(update={"models_of": None})
    n_again = 0 if options.models_of is None else 1
    if not 1 <= len(files) + len(options.zoo) + n_again <= _MAX_MODELS:
        raise wrong_field(
            "model",
            f"a job takes 1 to {_MAX_MODELS} models, got {len(files) + len(options.zoo)}",
            advice="Send a .onnx file as 'model', the name of a built-in network as 'zoo', or the "
            "number of a job as 'models_of'.",
        )
    return options, files


def body_schema() -> dict[str, Any]:
    """Describe the form for the OpenAPI document."""
    schema = TuneForm.model_json_schema()
    models = {
        "type": "array",
        "maxItems": _MAX_MODELS,
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
