"""Tuning by a service while a function is called: submit, wait, download, swap the library.

A daemon thread does all of it; the process may end at any time.
"""

import logging
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.client import ServiceError, TunerClient
from tuner.client.errors import RequestRejected
from tuner.errors import TunerError
from tuner.files.process_folder import shared_folder
from tuner.jit import libraries
from tuner.jit.libraries import LoadedLibrary
from tuner.jit.options import JitOptions
from tuner.library import manifest as manifests
from tuner.library.manifest import Manifest

_LOG = logging.getLogger(__name__)
# A network that is replaced sooner, as when weights change with every call, is not submitted.
_SETTLE_SECS = 2.0
_MIN_PAUSE_SECS = 0.5
_MAX_PAUSE_SECS = 20.0


@dataclass(frozen=True)
class TuningRequest:
    """A network to be tuned, and the call that its library is for.

    Attributes:
        name: Name for people.
        manifest: Manifest of the library that serves now.
        inputs: Shapes of the dynamic inputs of the model.
        write_model: Writes an ONNX model into a folder, which may take long; returns its path.
        is_current: Returns whether the library still serves.
        accept: Swaps the library in; returns the reason if it cannot, else an empty text.
    """

    name: str
    manifest: Manifest
    inputs: Mapping[str, tuple[int, ...]]
    write_model: Callable[[Path], Path]
    is_current: Callable[[], bool]
    accept: Callable[[LoadedLibrary], str]


@dataclass
class _Pending:
    request: TuningRequest
    since: float
    job: int | None = None


class BackgroundTuner:
    """Has a service tune the networks of one function.

    Args:
        token: Token for the service; None for none.
        trials: Budget of a job.
        settle_secs: Time for which a network must serve before it is submitted.

    Raises:
        RequestError: If the URL is not valid.
    """

    def __init__(
        self, url: str, token: str | None, trials: int, settle_secs: float = _SETTLE_SECS
    ) -> None:
        TunerClient(url, token).close()
        self._url = url
        self._token = token
        self._trials = trials
        self._settle_secs = settle_secs
        self._lock = threading.Lock()
        self._pending: list[_Pending] = []
        self._thread: threading.Thread | None = None
        self._warnings: set[str] = set()

    def submit(self, request: TuningRequest) -> None:
        """Have a network tuned, and return at once."""
        with self._lock:
            self._pending.append(_Pending(request, time.monotonic()))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="tuner-jit-background", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        pause = _MIN_PAUSE_SECS
        with TunerClient(self._url, self._token) as client:
            while True:
                with self._lock:
                    pending = list(self._pending)
                    if not pending:
                        self._thread = None
                        return
                ended = [item for item in pending if self._advance(client, item)]
                with self._lock:
                    self._pending = [item for item in self._pending if item not in ended]
                pause = _MIN_PAUSE_SECS if ended else min(pause * 1.3, _MAX_PAUSE_SECS)
                time.sleep(pause)

    def _advance(self, client: TunerClient, pending: _Pending) -> bool:
        """Take the next step of a request, if it is due; return whether the request has ended."""
        request = pending.request
        try:
            if not request.is_current():
                return True
            if pending.job is None:
                if time.monotonic() < pending.since + self._settle_secs:
                    return False
                # Before the model is written, which may take seconds on every core.
                client.health()
                with tempfile.TemporaryDirectory(prefix="jit-", dir=shared_folder()) as folder:
                    model = request.write_model(Path(folder))
                    submitted = client.tune(
                        model,
                        trials=self._trials,
                        target=request.manifest.target,
                        inputs={name: list(shape) for name, shape in request.inputs.items()},
                        name=request.name,
                    )
                _LOG.info("job %d of %s tunes %s", submitted.job.id, self._url, request.name)
                pending.job = submitted.job.id
            return self._collect(client, request, pending.job)
        except RequestRejected as error:
            self._warn(f"{self._url} does not tune {request.name}: {error}")
        except ServiceError as error:
            self._warn(f"{self._url} cannot tune {request.name} for now: {error}")
            return False
        except TunerError as error:
            self._warn(f"{request.name} cannot be tuned in the background: {error}")
        # No error may end the thread, or print a traceback into the program's output.
        except Exception as error:
            self._warn(f"{request.name} cannot be tuned in the background: {error!r}")
        return True

    def _collect(self, client: TunerClient, request: TuningRequest, job: int) -> bool:
        now = client.job(job).job
        if now.state in ("failed", "cancelled"):
            self._warn(f"job {job} of {self._url}, which tuned {request.name}, {now.state}")
            return True
        if now.state != "done":
            return False
        started = time.perf_counter()
        client.wait_for_build(client.build(job))
        with tempfile.TemporaryDirectory(prefix="tuner-jit-") as folder:
            out = Path(folder) / "library"
            manifest = client.download_library(job, out)
            problem = _difference(manifest, request.manifest)
            if not problem:
                secs = time.perf_counter() - started
                loaded = LoadedLibrary(libraries.load(out), manifest, "", True, 0.0, secs)
                problem = request.accept(loaded)
        if problem:
            self._warn(f"the library of {self._url} for {request.name} cannot be used: {problem}")
        return True

    def _warn(self, text: str) -> None:
        if text not in self._warnings:
            self._warnings.add(text)
            _LOG.warning("%s; the library that serves now stays", text)


def make_background_tuner(options: JitOptions) -> BackgroundTuner | None:
    """Make a tuner for the service of the options, if there is one; nothing is started yet."""
    if options.service is None:
        return None
    return BackgroundTuner(options.service, options.token, options.trials)


def _difference(new: Manifest, current: Manifest) -> str:
    """Return why a library cannot replace the current one; empty if it can."""
    for field in ("target", "device"):
        if getattr(new, field) != getattr(current, field):
            return f"it is for another {field}: {getattr(new, field)}"
    if _shapes(new.inputs) != _shapes(current.inputs):
        return f"it has other inputs: {dict(new.inputs)}"
    if len(new.outputs) != len(current.outputs):
        return f"it has {len(new.outputs)} outputs"
    return ""


def _shapes(inputs: manifests.Inputs) -> list[tuple[tuple[int, ...], str]]:
    return [(tuple(shape), dtype) for shape, dtype in inputs.values()]
