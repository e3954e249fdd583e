"""The remote tier: machines share entries, and no problem of it stops a build."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from moto.server import ThreadedMotoServer

from tests.tuner.build_cache.entries import CODE, WEIGHTS, key, large, made, names, put, small
from tests.tuner.build_cache.privileges import without_privilege
from tuner.build_cache.cache import Cache
from tuner.build_cache.remote import RemoteTier
from tuner.errors import RequestError

# Later versions of Python warn of forks in processes with threads; the children here take no lock
# that a thread may hold.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")

ALL = ["memory", "file", "s3"]


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    """A server of the S3 protocol on this machine."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket, and fsspec configured as a user configures it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": s3_server})
    files = fsspec.filesystem("s3")
    with contextlib.suppress(FileNotFoundError):
        files.rm("tuner-cache", recursive=True)
    files.mkdir("tuner-cache")
    return "s3://tuner-cache/shared"


@pytest.fixture(params=ALL)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store, of each kind in turn."""
    if request.param == "s3":
        bucket: str = request.getfixturevalue("s3_bucket")
        return bucket
    if request.param == "file":
        return f"file://{tmp_path / 'remote'}"
    files = fsspec.filesystem("memory")
    files.store.clear()
    return "memory://shared/cache"


@pytest.fixture
def here(tmp_path: Path, url: str, warnings: list[str]) -> Cache:
    """The cache of a machine."""
    return Cache(tmp_path / "here", url, warn=warnings.append)


@pytest.fixture
def there(tmp_path: Path, url: str, warnings: list[str]) -> Cache:
    """The cache of another machine."""
    return Cache(tmp_path / "there", url, warn=warnings.append)


def stored(url: str, suffix: str = "") -> list[str]:
    """Return the paths of the files of a store."""
    files, root = fsspec.core.url_to_fs(url)
    files.invalidate_cache()
    return [path for path in files.find(root) if path.endswith(suffix)]


def overwrite(url: str, path: str, content: bytes) -> None:
    """Overwrite a file of a store."""
    files, _ = fsspec.core.url_to_fs(url)
    files.pipe_file(path, content)


def test_an_entry_made_on_one_machine_is_found_on_another(
    here: Cache, there: Cache, url: str, warnings: list[str]
) -> None:
    """Large files come with it, and the second machine then has a copy of its own."""
    put(here, key(), large)
    assert len(stored(url)) == 2

    result = there.get_or_make(key(), lambda _: pytest.fail("made again"))

    assert result.hit
    assert (result.entry.read("code.o"), result.entry.read("weights.bin")) == (CODE, WEIGHTS)
    assert names(there.root) == names(here.root)
    assert Cache(there.root).get_or_make(key(), large).hit
    assert warnings == []


def test_a_missing_entry_is_a_miss_without_a_warning(here: Cache, warnings: list[str]) -> None:
    """The store itself need not exist."""
    assert here.find(key()) is None
    assert warnings == []


def test_writing_leaves_no_temporary_file(here: Cache, url: str) -> None:
    """Only entries and their blobs are in the store."""
    put(here, key(0), large)
    put(here, key(1))

    digests = [key(number).digest for number in range(2)]
    assert sorted({Path(path).name[:64] for path in stored(url)}) == sorted(digests)
    assert stored(url, ".part") == []


@pytest.mark.parametrize("damage", ["cut", "bit", "empty", "swapped", "blob", "blob-gone"])
def test_a_damaged_remote_entry_is_dropped_and_made_again(
    here: Cache, there: Cache, url: str, warnings: list[str], damage: str
) -> None:
    """A warning names it, and the next machine finds it whole."""
    put(here, key(), large)
    put(here, key(1))
    digest = key().digest
    files, _ = fsspec.core.url_to_fs(url)
    (entry,), (blob,) = stored(url, digest), stored(url, ".blob")
    content = files.cat_file(entry)
    if damage == "blob":
        overwrite(url, blob, WEIGHTS[:-1] + b"x")
    elif damage == "blob-gone":
        files.rm_file(blob)
    elif damage == "swapped":
        overwrite(url, entry, files.cat_file(stored(url, key(1).digest)[0]))
    else:
        changed = {"cut": content[:-7], "bit": content[:-1] + b"\xff", "empty": b""}
        overwrite(url, entry, changed[damage])

    result = there.get_or_make(key(), large)

    assert not result.hit
    assert len(warnings) == 1
    assert "damaged" in warnings[0]
    assert digest[:12] in warnings[0]
    third = Cache(there.root.parent / "third", url, warn=warnings.append)
    assert third.get_or_make(key(), large).hit
    assert len(warnings) == 1


def test_one_of_many_processes_fetches(here: Cache, there: Cache, tmp_path: Path) -> None:
    """The ranks of a job on one machine do not all load the same files."""
    put(here, key(), large)
    pids = []
    for number in range(4):
        pid = os.fork()
        if pid == 0:
            status = 1
            with contextlib.suppress(BaseException):
                result = there.get_or_make(key(), small)
                status = not (result.hit and result.entry.read("weights.bin") == WEIGHTS)
                (tmp_path / f"done{number}").touch()
            os._exit(status)
        pids.append(pid)

    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 4
    assert names(there.root) == names(here.root)


def test_a_store_that_cannot_be_written_is_read(tmp_path: Path, warnings: list[str]) -> None:
    """There is one warning; builds go on, and hits stay hits."""
    url = f"file://{tmp_path / 'remote'}"
    put(Cache(tmp_path / "here", url), key(0), large)
    folders = [tmp_path / "remote", *(tmp_path / "remote").rglob("*")]
    for folder in folders:
        folder.chmod(0o555 if folder.is_dir() else 0o444)
    there = Cache(tmp_path / "there", url, warn=warnings.append)

    # Threads inherit what their parent may do.
    with without_privilege():
        first = there.get_or_make(key(0), large)
        others = [made(there, key(number)) for number in (1, 2)]
    for folder in folders:
        folder.chmod(0o755)

    assert first.hit
    assert [other.read("code.o") for other in others] == [CODE, CODE]
    assert len(warnings) == 1
    assert "is only read: Permission denied" in warnings[0]


def test_a_local_tier_that_cannot_be_written_still_fetches(
    here: Cache, url: str, tmp_path: Path, warnings: list[str]
) -> None:
    """An entry of another machine is used, and not made again."""
    put(here, key(), large)
    (tmp_path / "there").mkdir()
    (tmp_path / "there").chmod(0o555)
    there = Cache(tmp_path / "there", url, warn=warnings.append)

    with without_privilege():
        result = there.get_or_make(key(), lambda _: pytest.fail("made again"))

    assert result.entry.read("weights.bin") == WEIGHTS
    assert "nothing is kept" in warnings[0]


@pytest.mark.parametrize("url", ["s3"], indirect=True)
@pytest.mark.slow("waits for time-outs")
def test_a_server_that_goes_away_stops_no_build(
    url: str, s3_server: str, tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of a build is made locally, and the store is not used for a while."""
    relay = Relay(s3_server)
    monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": relay.url})
    cache = Cache(tmp_path / "cache", url)
    cache.remote = RemoteTier(url, warnings.append, timeout_secs=10.0)
    put(cache, key(0), large)
    assert warnings == []
    assert len(stored(url, ".blob")) == 1

    relay.close()
    for number in range(1, 4):
        assert made(cache, key(number), large).read("weights.bin") == WEIGHTS

    assert len(warnings) == 1
    assert "it is not used for 60 s" in warnings[0]


def test_a_store_that_does_not_answer_is_given_up(
    tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a pause it is tried again."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setitem(
            fsspec.config.conf,
            "s3",
            {
                "endpoint_url": f"http://127.0.0.1:{silent.getsockname()[1]}",
                "key": "testing",
                "secret": "testing",
            },
        )
        tier = RemoteTier("s3://cache/a", warnings.append, timeout_secs=0.3, pause_secs=0.4)
        for _ in range(3):
            assert tier.fetch(key(), tmp_path) is None
        assert len(warnings) == 1
        assert "no answer within 0.3 s" in warnings[0]
        time.sleep(0.5)
        assert tier.fetch(key(), tmp_path) is None
        assert len(warnings) == 2


@pytest.mark.parametrize("url", ["nothing://at/all", "gs://bucket/of/a/missing/package"])
def test_an_unusable_url_is_a_wrong_request(tmp_path: Path, url: str) -> None:
    """The message names the setting and what is missing."""
    with pytest.raises(RequestError, match=f"cache_remote {url}: "):
        Cache(tmp_path, url)


class Relay:
    """Forwards connections to a server until it is closed, and then breaks all of them."""

    def __init__(self, target: str) -> None:
        host, port = target.removeprefix("http://").split(":")
        self._target = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop listening, and break all connections."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._target)
                self._open += [client, server]
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=pair, daemon=True).start()

    @staticmethod
    def _forward(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
