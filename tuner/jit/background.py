"""Tuning by a service while a function is called: submit, wait, download, offer the library.

All of it happens in one thread that ends with the process, and that nobody waits for.
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
from tuner.jit import libraries
from tuner.jit.libraries import Loaded
from tuner.jit.options import JitOptions
from tuner.library import manifest as manifests
from tuner.library.manifest import Manifest

_LOG = logging.getLogger(__name__)
# Weights that change with every call are not worth a job each.
_SETTLE_SECS = 2.0
_FIRST_PAUSE_SECS = 0.5
_LONGEST_PAUSE_SECS = 20.0


@dataclass(frozen=True)
class Wish:
    """A network whose library is wanted better.

    Attributes:
        name: For people.
        manifest: Of the library that serves now.
        inputs: Shapes for the dynamic inputs of the model.
        write_model: Puts an ONNX model into a folder, which may take long; returns its file.
        is_wanted: Whether the library still serves.
        accept: Serves by the library from now on; returns why not, or nothing.
    """

    name: str
    manifest: Manifest
    inputs: Mapping[str, tuple[int, ...]]
    write_model: Callable[[Path], Path]
    is_wanted: Callable[[], bool]
    accept: Callable[[Loaded], str]


@dataclass
class _Pending:
    wish: Wish
    since: float
    job: int | None = None


class Background:
    """Has the networks of one function tuned.

    Args:
        url: Of the service.
        token: Of the service; None for none.
        trials: Budget of a job.
        settle_secs: How long a network has to serve before it is submitted.

    Raises:
        RequestError: If the URL cannot be one.
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
        self._told: set[str] = set()

    def ask(self, wish: Wish) -> None:
        """Have a network tuned; returns at once."""
        with self._lock:
            self._pending.append(_Pending(wish, time.monotonic()))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="tuner-jit-background", daemon=True
                )
                self._thread.start()

    def _work(self) -> None:
        pause = _FIRST_PAUSE_SECS
        with TunerClient(self._url, self._token) as client:
            while True:
                with self._lock:
                    pending = list(self._pending)
                    if not pending:
                        self._thread = None
                        return
                moved = [each for each in pending if self._advance(client, each)]
                with self._lock:
                    self._pending = [each for each in self._pending if each not in moved]
                pause = _FIRST_PAUSE_SECS if moved else min(pause * 1.3, _LONGEST_PAUSE_SECS)
                time.sleep(pause)

    def _advance(self, client: TunerClient, pending: _Pending) -> bool:
        """Do what can be done for a wish now; return whether that was all."""
        wish = pending.wish
        try:
            if not wish.is_wanted():
                return True
            if pending.job is None:
                if time.monotonic() < pending.since + self._settle_secs:
                    return False
                pending.job = self._submit(client, wish)
            return self._collect(client, wish, pending.job)
        except RequestRejected as error:
            self._warn(f"{self._url} does not tune {wish.name}: {error}")
        except ServiceError as error:
            self._warn(f"{self._url} cannot be asked to tune {wish.name} for now: {error}")
            return False
        except TunerError as error:
            self._warn(f"{wish.name} cannot be tuned in the background: {error}")
        # Whatever it is, it must not end the tuning of the others, nor litter the program's output.
        except Exception as error:
            self._warn(f"{wish.name} cannot be tuned in the background: {error!r}")
        return True

    def _submit(self, client: TunerClient, wish: Wish) -> int:
        # Before the model is written, which may take seconds of every core.
        client.health()
        with tempfile.TemporaryDirectory(prefix="tuner-jit-") as folder:
            model = wish.write_model(Path(folder))
            submitted = client.tune(
                model,
                trials=self._trials,
                target=wish.manifest.target,
                inputs={name: list(shape) for name, shape in wish.inputs.items()},
                name=wish.name,
            )
        _LOG.info("job %d of %s tunes %s", submitted.job.id, self._url, wish.name)
        return submitted.job.id

    def _collect(self, client: TunerClient, wish: Wish, job: int) -> bool:
        now = client.job(job).job
        if now.state in ("failed", "cancelled"):
            self._warn(f"job {job} of {self._url}, which tuned {wish.name}, {now.state}")
            return True
        if now.state != "done":
            return False
        started = time.perf_counter()
        client.wait_for_build(client.build(job))
        with tempfile.TemporaryDirectory(prefix="tuner-jit-") as folder:
            out = Path(folder) / "library"
            described = client.download_library(job, out)
            problem = _unlike(described, wish.manifest)
            if not problem:
                secs = time.perf_counter() - started
                loaded = Loaded(libraries.load(out), described, "", True, 0.0, secs)
                problem = wish.accept(loaded)
        if problem:
            self._warn(f"the library of {self._url} for {wish.name} is of no use here: {problem}")
        return True

    def _warn(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            _LOG.warning("%s; the library that serves now stays", text)


def make_background(options: JitOptions) -> Background | None:
    """Return what tunes in the background, if there is a service; nothing is started yet."""
    if options.service is None:
        return None
    return Background(options.service, options.token, options.trials)


def _unlike(theirs: Manifest, ours: Manifest) -> str:
    """Say why a library cannot take the place of another; empty if it can."""
    for what in ("target", "device"):
        if getattr(theirs, what) != getattr(ours, what):
            return f"it is for another {what}: {getattr(theirs, what)}"
    if _shapes(theirs.inputs) != _shapes(ours.inputs):
        return f"it has other inputs: {dict(theirs.inputs)}"
    if len(theirs.outputs) != len(ours.outputs):
        return f"it has {len(theirs.outputs)} outputs"
    return ""


def _shapes(inputs: manifests.Inputs) -> list[tuple[tuple[int, ...], str]]:
    return [(tuple(shape), dtype) for shape, dtype in inputs.values()]
