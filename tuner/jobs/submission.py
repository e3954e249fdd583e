"""Jobs that are submitted to a service, and the requests that their rows store.

A model is an upload, named by the hash of its content, or ``zoo:NAME``. No other reference reaches
a coordinator, so that a client cannot make it read a file of its machine.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from records import labels
from records.models import Job, NetworkTask
from records.service import submissions
from records.service.submissions import Submission
from tuner.errors import RequestError
from tuner.jobs.comparability import check_default
from tuner.jobs.requests import ModelRequest, TuneRequest
from tuner.jobs.spec import TuneSpec, make_spec
from tuner.settings import request_caps
from tuner.settings.request_caps import RequestCaps, check_caps

_UPLOAD = re.compile(r"upload:([0-9a-f]{64}\.onnx)", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_MAX_NAME_CHARS = 200


def upload_reference(sha256: str, suffix: str = ".onnx") -> str:
    """Name an uploaded model by the hash of its bytes.

    Raises:
        RequestError: If ``sha256`` is not a hash, or the service refuses files with the suffix.
    """
    reference = f"upload:{sha256}{suffix}"
    if not _UPLOAD.fullmatch(reference):
        raise RequestError(f"{sha256 + suffix!r} does not name an uploaded .onnx file")
    return reference


def upload_path(data_dir: Path, sha256: str) -> Path:
    """Return the path of an uploaded model.

    Raises:
        RequestError: If ``sha256`` is not a hash.
    """
    if not _SHA256.fullmatch(sha256):
        raise RequestError(f"{sha256!r} is not a SHA-256 hash")
    return data_dir / "uploads" / f"{sha256}.onnx"


def resolve(reference: str, data_dir: Path) -> str:
    """Return a reference of the service as a reference of this machine, with a path for an upload.

    Raises:
        RequestError: If it is neither an upload nor a zoo network.
    """
    _check_reference(reference)
    upload = _UPLOAD.fullmatch(reference)
    return reference if upload is None else str(data_dir / "uploads" / upload[1])


def submit_request(
    session: Session,
    request: TuneRequest,
    name: str,
    *,
    owner: str | None = None,
    project: str | None = None,
    caps: RequestCaps = request_caps.DEFAULTS,
) -> tuple[Job, bool]:
    """Store a request as a job of the service; return the job, and whether it is new.

    A request for what an existing job of its owner does returns that job. Its limits grow to those
    of the request; it goes on if it was stopped, or was done with less. A budget of 0 trials splits
    the network into tasks and measures nothing; without any limit, a task gets 64 trials.

    Args:
        request: A request whose models are uploads or zoo networks.
        name: Name for people; empty for one derived from the models.
        owner: Name of the token that requests it; None for a service without tokens.
        project: Project of the token.
        caps: The highest values of options that the service accepts.

    Raises:
        RequestError: If the request is wrong; nothing was stored.
    """
    _check(request, name)
    check_caps(request.spec.model_dump(), caps)
    spec, submission = request.spec, submissions.owned(_submission_of(request), owner)
    job, is_new = submissions.submit(
        session,
        Submission(
            submission=submission,
            request={**spec.model_dump(), "models": [asdict(model) for model in request.models]},
            objective=spec.objective,
            seed=spec.seed,
            budget_trials=_trials_of(session, spec, submission),
            budget_secs=spec.seconds,
            priority=spec.priority,
            name=name or " + ".join(map(model_name, request.models)),
            owner=owner,
            project=project,
        ),
    )
    if spec.tag:
        labels.edit(session, job.id, tags=spec.tag)
    return job, is_new


def request_of(stored: Mapping[str, Any], data_dir: Path | None = None) -> TuneRequest:
    """Read the request of a stored job.

    Args:
        stored: Request as the row of a job has it.
        data_dir: Folder of uploads, to resolve references; None leaves them as they are.

    Raises:
        RequestError: If a reference is neither an upload nor a zoo network.
    """
    models = tuple(_model_of(model, data_dir) for model in stored["models"])
    fields = {key: value for key, value in stored.items() if key != "models"}
    return TuneRequest(models, make_spec(fields))


def names_of(stored: Mapping[str, Any]) -> str:
    """Return the names of the models of a stored request, as its owner gave them."""
    models = stored.get("models", ())
    named = (ModelRequest(model["reference"], name=model.get("name", "")) for model in models)
    return " + ".join(map(model_name, named))


def uploads_of(stored: Mapping[str, Any], data_dir: Path) -> list[Path]:
    """Return the paths of the uploads that a stored request names."""
    matches = (_UPLOAD.fullmatch(model["reference"]) for model in stored["models"])
    return [data_dir / "uploads" / upload[1] for upload in matches if upload is not None]


def model_name(model: ModelRequest) -> str:
    """Return the name of a model for people: its own, or one derived from its reference."""
    if model.name:
        return model.name
    if model.reference.startswith("upload:"):
        return model.reference.removeprefix("upload:")[:12]
    return model.reference.removeprefix("zoo:")


def _check(request: TuneRequest, name: str) -> None:
    for model in request.models:
        _check_reference(model.reference)
        if model.random_weights is not None and model.random_weights < 0:
            raise RequestError(
                f"must be at least 0, got {model.random_weights}", field="random_weights"
            )
        _check_text("target", model.target)
        for key in model.inputs:
            _check_text("input", key)
        for key in model.buckets:
            _check_text("bucket", key)
        for key in model.masks:
            _check_text("mask", key)
    check_default(request.spec.evaluator)
    # The name of a network is that of its file.
    for text, field in ((name, "name"), *((model.name, "model") for model in request.models)):
        _check_text(field, text)
        if len(text) > _MAX_NAME_CHARS:
            raise RequestError(
                f"a name has at most {_MAX_NAME_CHARS} characters, got {len(text)}", field=field
            )


def _check_text(field: str, text: str) -> None:
    if not text.isprintable():
        raise RequestError(f"must be printable, got {text!r}", field=field)


def _check_reference(reference: str) -> None:
    is_zoo = reference.startswith("zoo:") and reference.isprintable()
    if not is_zoo and not _UPLOAD.fullmatch(reference):
        raise RequestError(
            f"{reference!r} is neither an uploaded .onnx file nor zoo:NAME", field="zoo"
        )


def _submission_of(request: TuneRequest) -> str:
    """Hash what makes a job the job it is: neither its limits nor its name nor its priority."""
    spec = request.spec
    models = [{**asdict(model), "name": ""} for model in request.models]
    evaluator = asdict(spec.evaluator)
    for name in ("network_bytes", "weights_in_memory"):  # they follow from the models
        del evaluator[name]
    described = {
        "models": sorted(models, key=lambda model: json.dumps(model, sort_keys=True)),
        "goal": [spec.objective, spec.objective_options],
        "seed": spec.seed,
        "allocator": spec.allocator,
        "cost_model": spec.cost_model,
        "evaluator": evaluator,
        **({"task": sorted(set(spec.task))} if spec.task else {}),
    }
    text = json.dumps(described, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _trials_of(session: Session, spec: TuneSpec, submission: str) -> int | None:
    """Return the limit to store; None until the number of tasks is known.

    A job that was only split into tasks is tuned by default when it is requested without a limit.
    """
    if spec.trials is not None or spec.seconds is not None:
        return spec.trials
    job = session.scalar(select(Job).where(Job.submission == submission))
    if job is None or job.budget_trials != 0 or job.network_id is None:
        return None
    n_tasks = select(func.count()).where(NetworkTask.network_id == job.network_id)
    return spec.with_default_budget(session.scalar(n_tasks) or 0).trials


def _model_of(stored: Mapping[str, Any], data_dir: Path | None) -> ModelRequest:
    _check_reference(stored["reference"])
    model = ModelRequest(
        **{
            **stored,
            "inputs": {name: tuple(shape) for name, shape in stored["inputs"].items()},
            "buckets": {
                name: tuple((size, weight) for size, weight in sizes)
                for name, sizes in stored["buckets"].items()
            },
        }
    )
    if data_dir is None:
        return model
    named = replace(model, name=model_name(model))
    return replace(named, reference=resolve(model.reference, data_dir))
