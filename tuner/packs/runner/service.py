"""Measurement for a service: packs are leased and downloaded, and their results sent, over HTTPS.

A process of the pack measures, as ``python PACK run`` does, while this one sends what it writes.
The service has one copy of the results, and the process that leases the pack next goes on behind
it.
"""

import hashlib
import http.client
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tuner.packs import result_lines
from tuner.packs.runner.compilers import compiled_beside
from tuner.packs.runner.contents import Pack

_PATH = "/api/v1/remote/packs/"
_TIMEOUT_SECS = 25.0
# Interval between looks for packs and for lines, between signs of life, and after a failed pack.
_LEASE_SECS, _LOOK_SECS, _SIGN_SECS, _REST_SECS = 5.0, 0.5, 5.0, 30.0
_MAX_DELAY_SECS = 10.0
_PORTION_BYTES, _CHUNK_BYTES = 256 << 10, 64 << 10
_N_DOWNLOADS, _MAX_PROBLEM_CHARS = 3, 500
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_TRANSIENT = (408, 429)


class ServiceError(Exception):
    """The service refuses this machine; the text says why."""


class RefusedError(ServiceError):
    """The service refuses what it was sent; the text says why."""


class PackLost(Exception):  # noqa: N818  it is the state of a lease
    """Another device measures the pack now, or the service does not offer it any more."""


class Unreachable(Exception):  # noqa: N818  likewise, of a connection
    """The service does not answer in this moment."""


@dataclass(frozen=True)
class Service:
    """A service, as this machine reaches it.

    Attributes:
        token: Token with the scope ``measure``; empty for none.
    """

    url: str
    token: str

    def open(self, path: str, body: Any = None, **headers: str) -> Any:
        """Send a request; return its answer, which is open.

        Raises:
            PackLost: If what it names is not there (any more).
            ServiceError: If it is refused.
            Unreachable: If there is no answer in this moment.
        """
        content = None if body is None else json.dumps(body).encode()
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        if content is not None:
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(self.url + _PATH + path, content, headers)
        # A redirect would take the token elsewhere; a proxy cannot reach a loopback address.
        is_loopback = urlsplit(self.url).hostname in _LOOPBACK
        proxies = [urllib.request.ProxyHandler({})] if is_loopback else []
        opener = urllib.request.build_opener(_NoRedirects(), *proxies)
        try:
            return opener.open(request, timeout=_TIMEOUT_SECS)
        except urllib.error.HTTPError as error:
            text = _detail(error)
            if error.code in _TRANSIENT or error.code >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
                raise Unreachable(text) from error
            if error.code == http.HTTPStatus.NOT_FOUND:
                raise PackLost(text) from error
            if error.code == http.HTTPStatus.UNPROCESSABLE_ENTITY:
                raise RefusedError(text) from error
            raise ServiceError(text) from error
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{self.url}: {error}") from error

    def read(self, path: str, body: Any = None) -> bytes:
        """Send a request and read its answer; see :meth:`open`."""
        try:
            with self.open(path, body) as answer:
                content: bytes = answer.read()
                return content
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{self.url}: {error}") from error


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def _detail(error: urllib.error.HTTPError) -> str:
    """Return what an answer says of its error."""
    try:
        return str(json.loads(error.read(_CHUNK_BYTES))["detail"])
    except (OSError, ValueError, TypeError, LookupError, http.client.HTTPException):
        return f"{error.url} answers with status {error.code}"


def serve(program: Path, service: Service, host: str, folder: Path, options: list[str]) -> None:
    """Measure packs of a service until interrupted.

    Args:
        program: This program, whose process describes the GPU.
        host: Name of this machine there.
        folder: Folder for packs and results.
        options: Options of ``python PACK run``.

    Raises:
        ServiceError: If there is no GPU, or the service refuses this machine.
    """
    described = subprocess.run(
        [sys.executable, str(program), "describe"], capture_output=True, text=True, check=False
    )
    if described.returncode:
        raise ServiceError(described.stderr.strip() or "the GPU cannot be described")
    gpu = json.loads(described.stdout)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = folder / gpu["uuid"]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _Runner(service, host, gpu, folder, options).run()


class _Runner:
    """The process of a GPU."""

    def __init__(
        self,
        service: Service,
        host: str,
        gpu: Mapping[str, Any],
        folder: Path,
        options: list[str],
    ) -> None:
        self._service, self._gpu = service, gpu
        self._folder, self._options = folder, options
        name = f"{host}/{gpu['uuid'][:12]}"
        self._identity = {"name": name, "key": secrets.token_hex(16)}
        self._signed = 0.0

    def run(self) -> None:
        """Measure packs until interrupted."""
        self._register()
        while True:
            try:
                leased = json.loads(self._retried("lease", self._identity))
            except PackLost:
                self._register()
                continue
            try:
                if not leased["pack"]:
                    time.sleep(_LEASE_SECS)
                elif not self._measure(leased):
                    time.sleep(_REST_SECS)
            except PackLost as error:
                _say(f"Pack {leased['pack']} is lost: {error}")
                time.sleep(_LEASE_SECS)

    def _register(self) -> None:
        body = {**self._identity, "format": result_lines.FORMAT, "gpu": self._gpu}
        self._retried("register", body)
        _say(f"{self._identity['name']}: {self._gpu['name']} serves {self._service.url}")

    def _retried(self, path: str, body: Any = None) -> bytes:
        """Send a request until it is answered."""
        n_failures = 0
        while True:
            try:
                return self._service.read(path, body)
            except Unreachable as error:
                n_failures = _pause(error, n_failures)

    def _sign(self, **fields: Any) -> None:
        """Send results of a pack, or a sign of life."""
        self._service.read("results", {**self._identity, **fields})
        self._signed = time.monotonic()

    def _measure(self, leased: Mapping[str, Any]) -> bool:
        """Measure a pack; return whether it has ended.

        Raises:
            PackLost: If another device measures it.
        """
        name = leased["pack"]
        for file in self._folder.iterdir():
            if not file.name.startswith(name):
                _remove(file)
        try:
            pack = Pack(self._download(leased))
            out = pack.path.with_suffix(".results")
            sent = self._restore(pack, out, leased["n_lines"])
        except PackLost as error:
            # Returned, unless it is not offered any more; it gets each pack three times.
            self._end(name, f"it cannot be measured: {error}")
            return False
        command = [sys.executable, str(pack.path), "run", "--out", str(out), "--with-parent"]
        command += ["--minutes", str(leased["minutes"]), *self._options]
        environ = {key: value for key, value in os.environ.items() if key != "TUNER_TOKEN"}
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stderr=errors, env=environ
            )
            refusal = ""
            try:
                self._send(name, out, sent, process)
            except RefusedError as error:
                refusal = f"its results are refused: {error}"
            finally:
                process.kill()  # no effect on one that has ended
                status = process.wait()
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
            ending = lines[-1] if lines else f"its process ended with {status}"
            problem = refusal or (ending if status else "")
        self._end(name, problem)
        if not problem:
            for file in (pack.path, out, compiled_beside(pack)):
                _remove(file)
        return not problem

    def _end(self, name: str, problem: str) -> None:
        """End a pack, or return it with the problem that it has here."""
        problem = problem[:_MAX_PROBLEM_CHARS]
        body = {**self._identity, "pack": name, "ended": not problem, "problem": problem}
        self._retried("results", body)
        _say(f"Pack {name}: {problem or 'done'}")

    def _download(self, leased: Mapping[str, Any]) -> Path:
        """Download a pack, or what is missing of it.

        Raises:
            PackLost: If it is damaged whenever it arrives, or is not offered any more.
        """
        name, n_bytes = leased["pack"], leased["n_bytes"]
        path, part = (self._folder / f"{name}.{suffix}" for suffix in ("pyz", "part"))
        for _ in range(_N_DOWNLOADS):
            if not path.is_file():
                n_failures = 0
                while not part.is_file() or part.stat().st_size < n_bytes:
                    try:
                        self._download_to(part, name, n_bytes)
                    except Unreachable as error:
                        n_failures = _pause(error, n_failures)
                part.replace(path)
            with path.open("rb") as stream:
                if hashlib.file_digest(stream, "sha256").hexdigest() == leased["sha256"]:
                    return path
            path.unlink()
        raise PackLost("its file is damaged")

    def _download_to(self, part: Path, name: str, n_bytes: int) -> None:
        part.touch(mode=0o600)
        with part.open("r+b") as stream:
            start = {"Range": f"bytes={stream.seek(0, os.SEEK_END)}-"}
            try:
                with self._service.open(f"{name}/file", **start) as answer:
                    if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
                        stream.seek(0)
                        stream.truncate()
                    while content := answer.read(_CHUNK_BYTES):
                        if stream.tell() + len(content) > n_bytes:
                            raise PackLost("its file is larger than the service said")
                        stream.write(content)
                        if time.monotonic() - self._signed > _SIGN_SECS:
                            self._sign(pack=name)
            except (OSError, http.client.HTTPException) as error:
                raise Unreachable(str(error)) from error

    def _restore(self, pack: Pack, out: Path, n_lines: int) -> tuple[int, int]:
        """Have the results of earlier processes in a file; return their lines and bytes.

        Results that a process of this machine wrote and did not send are kept.

        Raises:
            PackLost: If the service has damaged ones.
        """
        key = pack.index["key"]
        content = self._retried(f"{pack.index['id']}/results") if n_lines else b""
        rows, n_bytes = result_lines.load(key, content)
        if n_bytes < len(content):
            raise PackLost("its results are damaged")
        lines = content.splitlines(keepends=True)
        if rows:
            header = rows[0]
            # All are of one kind of GPU, and the process that measures looks for its own.
            header["device"]["uuid"] = self._gpu["uuid"]
            lines[0] = result_lines.dump(key, header)
        local = out.read_bytes().splitlines(keepends=True) if out.is_file() else []
        if local[: len(lines)] != lines:
            out.write_bytes(b"".join(lines))
        return len(lines), sum(map(len, lines))

    def _send(
        self, name: str, out: Path, sent: tuple[int, int], process: "subprocess.Popen[bytes]"
    ) -> None:
        """Send the lines of results until their process has ended and all are sent."""
        (n_lines, n_bytes), n_failures, due = sent, 0, 0.0
        while True:
            has_ended = process.poll() is not None
            lines = _lines_behind(out, n_bytes)
            if not lines and has_ended:
                return
            is_due = time.monotonic() >= due
            if is_due and (lines or time.monotonic() - self._signed > _SIGN_SECS):
                try:
                    self._sign(pack=name, first_line=n_lines, lines=lines.decode())
                    n_failures = 0
                    n_lines, n_bytes = n_lines + lines.count(b"\n"), n_bytes + len(lines)
                except Unreachable as error:
                    n_failures += 1
                    due = time.monotonic() + _delay_secs(n_failures)
                    _say(f"waiting for the service: {error}")
            if len(lines) < _PORTION_BYTES // 2:
                time.sleep(_LOOK_SECS)


def _lines_behind(out: Path, start: int) -> bytes:
    """Return whole lines of a file behind some bytes, as many as fit into a request."""
    if not out.is_file():
        return b""
    with out.open("rb") as stream:
        stream.seek(start)
        content = stream.read(_PORTION_BYTES)
    return content[: content.rfind(b"\n") + 1]


def _pause(error: Unreachable, n_failures: int) -> int:
    if not n_failures:
        _say(f"waiting for the service: {error}")
    time.sleep(_delay_secs(n_failures))
    return n_failures + 1


def _delay_secs(n_failures: int) -> float:
    return min(0.5 * 2.0 ** min(n_failures, 10), _MAX_DELAY_SECS)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _say(text: str) -> None:
    print(text, flush=True)
