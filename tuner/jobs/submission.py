"""Jobs asked for over the network: what their rows hold, and what it means.

A model is an upload, named by what it contains, or ``zoo:NAME``; no other reference reaches a
coordinator, so that nobody can have it read a file of its machine.
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

from records import submissions
from records.models import Job, NetworkTask
from records.submissions import Submission
from tuner.errors import RequestError
from tuner.jobs.goals import Goal
from tuner.jobs.options import TRIALS_PER_TASK
from tuner.jobs.preparation import ModelRequest
from tuner.jobs.requests import TuneRequest, options_of

_UPLOAD = re.compile(r"upload:([0-9a-f]{64}\.onnx)", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_MOST_NAME = 200


def upload_reference(sha256: str, suffix: str = ".onnx") -> str:
    """Name an uploaded model by the hash of its bytes.

    Raises:
        RequestError: If that is no hash, or models of such files are not taken.
    """
    reference = f"upload:{sha256}{suffix}"
    if not _UPLOAD.fullmatch(reference):
        raise RequestError(f"{sha256 + suffix!r} names no uploaded .onnx file")
    return reference


def upload_path(data_dir: Path, sha256: str) -> Path:
    """Return where an uploaded model is kept.

    Raises:
        RequestError: If that is no hash.
    """
    if not _SHA256.fullmatch(sha256):
        raise RequestError(f"{sha256!r} is no sha256")
    return data_dir / "uploads" / f"{sha256}.onnx"


def resolve(reference: str, data_dir: Path) -> str:
    """Return what a reference of the service is for this machine.

    Raises:
        RequestError: If it is neither an upload nor a zoo network.
    """
    _check_reference(reference)
    upload = _UPLOAD.fullmatch(reference)
    return reference if upload is None else str(data_dir / "uploads" / upload[1])


def submit_request(session: Session, request: TuneRequest, name: str) -> tuple[Job, bool]:
    """Store a request as a job of the service; returns the job, and whether it is new.

    Who asks for what was asked for before gets the job of then. Its limits grow to what is
    asked for now; it goes on if it was stopped, or was done with less. A budget of 0 trials
    splits the network into tasks and measures nothing; none at all is so many trials a task.

    Args:
        session: The transaction.
        request: Its models are uploads or zoo networks.
        name: For people; empty names it by its models.

    Raises:
        RequestError: If the request is wrong; nothing was stored.
    """
    _check(request, name)
    submission = _submission_of(request)
    return submissions.submit(
        session,
        Submission(
            submission=submission,
            request=_as_json(request),
            objective=request.goal.objective,
            seed=request.seed,
            budget_trials=_trials_of(session, request, submission),
            budget_secs=request.seconds,
            priority=request.priority,
            name=name or " + ".join(map(model_name, request.models)),
        ),
    )


def request_of(stored: Mapping[str, Any], data_dir: Path | None = None) -> TuneRequest:
    """Read back what a job was asked to do.

    Args:
        stored: The request of a job.
        data_dir: Where uploads are, to resolve references; None leaves them as they are.

    Raises:
        RequestError: If a reference is none of the service.
    """
    models = tuple(_model_of(model, data_dir) for model in stored["models"])
    rest = {key: value for key, value in stored.items() if key not in ("models", "goal")}
    return TuneRequest(models[0], models[1:], goal=Goal(**stored["goal"]), **rest)


def uploads_of(stored: Mapping[str, Any], data_dir: Path) -> list[Path]:
    """Return where the uploads that a job's request names are kept."""
    found = (_UPLOAD.fullmatch(model["reference"]) for model in stored["models"])
    return [data_dir / "uploads" / upload[1] for upload in found if upload is not None]


def model_name(model: ModelRequest) -> str:
    """Name a model for people: as it was called, or by its reference."""
    if model.name:
        return model.name
    if model.reference.startswith("upload:"):
        return model.reference.removeprefix("upload:")[:12]
    return model.reference.removeprefix("zoo:")


def _check(request: TuneRequest, name: str) -> None:
    # No trials at all is no budget of a session: there will be none.
    options_of(replace(request, trials=1) if request.trials == 0 else request)
    for model in request.models:
        _check_reference(model.reference)
        if model.random_weights is not None and model.random_weights < 0:
            raise RequestError(
                f"the seed of random weights must be at least 0, got {model.random_weights}"
            )
    texts = [name, *(text for model in request.models for text in (model.name, model.target))]
    texts += [key for model in request.models for key in model.inputs]
    for text in texts:
        if not text.isprintable():
            raise RequestError(f"names must be printable, got {text!r}")
    for text in (name, *(model.name for model in request.models)):
        if len(text) > _MOST_NAME:
            raise RequestError(f"a name may have {_MOST_NAME} characters, got {len(text)}")
    try:
        json.dumps(_as_json(request), allow_nan=False)
    except ValueError as error:
        raise RequestError("every number must be finite") from error


def _check_reference(reference: str) -> None:
    is_zoo = reference.startswith("zoo:") and reference.isprintable()
    if not is_zoo and not _UPLOAD.fullmatch(reference):
        raise RequestError(f"{reference!r} is neither an uploaded .onnx file nor zoo:NAME")


def _submission_of(request: TuneRequest) -> str:
    """Hash what makes a job the job it is: neither what it may spend nor what it is called."""
    options = options_of(replace(request, trials=1, seconds=None))
    models = [{**asdict(model), "name": ""} for model in request.models]
    described = {
        "models": sorted(models, key=lambda model: json.dumps(model, sort_keys=True)),
        "goal": [options.goal.objective, options.goal.options()],
        "seed": options.seed,
        "allocator": options.allocator,
        "cost_model": options.cost_model,
        "evaluator": asdict(options.evaluator),
    }
    text = json.dumps(described, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _trials_of(session: Session, request: TuneRequest, submission: str) -> int | None:
    """Return the limit to store; None until the number of tasks is known.

    A job that was only split into tasks, and is now asked for without a limit, is to be tuned.
    """
    if request.trials is not None or request.seconds is not None:
        return request.trials
    job = session.scalar(select(Job).where(Job.submission == submission))
    if job is None or job.budget_trials != 0 or job.network_id is None:
        return None
    wanted = select(func.count()).where(NetworkTask.network_id == job.network_id)
    return TRIALS_PER_TASK * (session.scalar(wanted) or 0)


def _as_json(request: TuneRequest) -> dict[str, Any]:
    described = asdict(request)
    del described["model"], described["more_models"]
    return {**described, "models": [asdict(model) for model in request.models]}


def _model_of(stored: Mapping[str, Any], data_dir: Path | None) -> ModelRequest:
    _check_reference(stored["reference"])
    model = ModelRequest(
        **{**stored, "inputs": {name: tuple(shape) for name, shape in stored["inputs"].items()}}
    )
    if data_dir is None:
        return model
    named = replace(model, name=model_name(model))
    return replace(named, reference=resolve(model.reference, data_dir))
