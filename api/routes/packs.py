"""Packs for GPUs without a tuner: their processes lease, download, measure, and send results."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from fastapi.responses import FileResponse, PlainTextResponse
from pydantic import Field
from sqlalchemy.orm import Session

from api.dependencies import Measuring, ReaderDep, StateDep, WriterDep
from api.documents.openapi import problems
from api.documents.schemas import Body, Text
from api.errors import Problem
from api.load.downloads import Download
from api.routes import REMOTE
from api.routes.remote import DeviceIn
from records.service import offered_packs, remote_devices
from records.service.owners import audit
from records.service.service_models import OfferedPack
from tuner.packs import offers, result_lines
from tuner.schemas import LeasedPack

router = APIRouter(prefix=f"{REMOTE}/packs", tags=["remote devices"])
_ID = "^[0-9a-f]{12}$"
PackId = Annotated[str, Path(pattern=_ID)]
_BYTES: dict[int | str, dict[str, Any]] = {200: {"content": {"application/octet-stream": {}}}}
Value = Annotated[Text, Field(max_length=200)]


class GpuIn(Body):
    """A GPU, as its driver describes it; values that the driver does not know are left out."""

    name: Value
    uuid: Annotated[Text, Field(pattern=r"^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
    capability: Value
    n_multiprocessors: Annotated[int, Field(ge=1, le=1 << 16)]
    cuda: Value | None = None
    driver: Value | None = None
    max_sm_mhz: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    max_memory_mhz: Annotated[int, Field(ge=0, le=1 << 20)] | None = None


class RunnerIn(DeviceIn):
    """A process that starts.

    Attributes:
        format: Format of the packs that it reads.
        gpu: Its GPU.
    """

    format: int
    gpu: GpuIn


class ResultsIn(DeviceIn):
    """Lines of results, or none as a sign of life.

    Attributes:
        pack: The pack, which the process has leased.
        first_line: Number of the first line.
        lines: Whole lines, as the runner of the pack wrote them.
        ended: True with the last lines of a pack; the process has no pack then.
        problem: Reason why it cannot be measured there; another GPU may.
    """

    pack: Annotated[Text, Field(pattern=_ID)]
    first_line: Annotated[int, Field(ge=0, le=1 << 30)] = 0
    lines: Annotated[Text, Field(max_length=offers.MAX_PORTION_CHARS)] = ""
    ended: bool = False
    problem: Annotated[Text, Field(max_length=500)] = ""


@router.get("/runner.pyz", response_class=Response, responses=_BYTES)
def download_runner(_subject: Measuring) -> Response:
    """Download the program of Python that measures packs for this service."""
    return Response(offers.runner_program(), media_type="application/octet-stream")


@router.post("/register", status_code=204, responses=problems(409))
def register_runner(body: RunnerIn, subject: Measuring, session: WriterDep) -> None:
    """Register a process that measures packs; it replaces one of the same token."""
    if body.format != result_lines.FORMAT:
        text = f"the runner reads format {body.format}, the service has {result_lines.FORMAT}"
        raise Problem("invalid", text, advice="Download runner.pyz again.")
    gpu = body.gpu.model_dump(exclude_none=True)
    remote_devices.register(session, body.name, subject.name, body.key, gpu=gpu)
    detail = {"name": body.name}
    audit.log_action(session, subject.name, subject.address, "register-device", detail=detail)


@router.post("/lease", response_model=LeasedPack, responses=problems(404, 409))
def lease_pack(body: DeviceIn, _subject: Measuring, session: WriterDep) -> LeasedPack:
    """Lease a pack to a process; one that it has comes again."""
    device = remote_devices.touch(session, body.name, body.key)
    pack = offered_packs.lease(session, device)
    if pack is None:
        return LeasedPack()
    return LeasedPack(
        pack=pack.pack,
        sha256=pack.sha256,
        n_bytes=pack.n_bytes,
        minutes=pack.minutes,
        n_lines=pack.n_lines,
    )


@router.post("/results", status_code=204, responses=problems(404, 409))
def store_pack_results(
    body: ResultsIn, _subject: Measuring, session: WriterDep, state: StateDep
) -> None:
    """Store lines of results, each once, and their records; or note that a process lives."""
    device = remote_devices.touch(session, body.name, body.key)
    pack = offered_packs.held(session, body.pack, device)
    data_dir, gpu = state.settings.data_dir, device.gpu or {}
    offers.store_portion(session, data_dir, pack, gpu, (body.first_line, body.lines))
    if body.problem:
        offered_packs.release(pack, body.problem)
    elif body.ended:
        offers.end_pack(session, data_dir, pack)


@router.get("/{pack}/results", response_class=PlainTextResponse, responses=problems(404))
def download_pack_results(pack: PackId, _subject: Measuring, session: ReaderDep) -> str:
    """Download the lines that a process which leases the pack goes on behind."""
    _open_pack(session, pack)
    return offered_packs.lines_of(session, pack)


@router.get(
    "/{pack}/file",
    response_class=FileResponse,
    responses={**_BYTES, 206: _BYTES[200], **problems(404)},
)
def download_pack(
    pack: PackId, _subject: Measuring, session: ReaderDep, state: StateDep
) -> FileResponse:
    """Download the file of a pack, or a range of its bytes."""
    _open_pack(session, pack)
    path = offers.file_of(state.settings.data_dir, pack)
    if not path.is_file():
        raise Problem("not-found", f"the file of pack {pack} is missing: offer it again")
    return Download(path, state.streams, media_type="application/octet-stream")


def _open_pack(session: Session, pack: str) -> None:
    row = session.get(OfferedPack, pack)
    if row is None or row.ended is not None:
        raise Problem("not-found", f"pack {pack} is not offered")
