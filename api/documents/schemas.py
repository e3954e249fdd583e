"""Parameters and bodies of the REST API; its answers are in :mod:`tuner.schemas`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Path, Query
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from tuner.jobs.spec import MAX_PRIORITY, MAX_SECS, MAX_TRIALS, Tags
from tuner.schemas import Links, NetworkTask

#: The largest number that a row can have, and that JavaScript reads exactly.
MAX_ID = 2**53 - 1


def storable(text: str) -> str:
    """Reject text that PostgreSQL cannot store.

    Raises:
        ValueError: If it contains NUL or half a surrogate pair.
    """
    if "\x00" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise ValueError("contains NUL or half a character")
    return text


Text = Annotated[str, AfterValidator(storable)]
Id = Annotated[int, Path(ge=1, le=MAX_ID)]
OptionalId = Annotated[int | None, Query(ge=1, le=MAX_ID)]
Limit = Annotated[int, Query(ge=1, le=1000, description="Maximum of items on the page.")]
Cursor = Annotated[
    str | None, Query(max_length=1000, description="`next` of the previous page; opaque.")
]
Trials = Annotated[int, Field(ge=1, le=MAX_TRIALS)]
Seconds = Annotated[float, Field(gt=0, le=MAX_SECS, allow_inf_nan=False)]
Priority = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]


class Body(BaseModel):
    """A JSON body; unknown fields are rejected."""

    model_config = ConfigDict(extra="forbid")


class BudgetIn(Body):
    """Limits to raise, at least one of them."""

    trials: Trials | None = None
    seconds: Seconds | None = None


class PriorityIn(Body):
    """A priority; one more doubles the share of device time."""

    priority: Priority


class LabelsIn(Body):
    """Tags and note of a job; what is left out stays, and what is empty is removed."""

    tags: Tags | None = None
    note: Annotated[Text, Field(max_length=4000)] | None = None


class CodeIn(Body):
    """Parts of a record's code to print."""

    parts: Annotated[
        list[Literal["schedule", "source", "assembly"]], Field(min_length=1, max_length=3)
    ] = ["schedule", "source", "assembly"]


class BuildIn(Body):
    """A library to build.

    Attributes:
        strict: Fail unless every task has a verified record.
        model_index: Index of the network among those of the job, from 0.
        profile: Profile the library on the device of the service, too.
    """

    strict: bool = False
    model_index: Annotated[int, Field(ge=0, le=1000)] = 0
    profile: bool = False


@dataclass(frozen=True)
class NetworkTasks:
    """The tasks of a network on a target, in the network's own order."""

    network_id: int
    target_id: int
    items: list[NetworkTask]


def links_of(job_id: int) -> Links:
    """Return the addresses of what belongs to a job."""
    at = f"/api/v1/jobs/{job_id}"
    names = ("tasks", "picks", "history", "events", "build", "library")
    return Links(self=at, page=f"/jobs/{job_id}", **{name: f"{at}/{name}" for name in names})
