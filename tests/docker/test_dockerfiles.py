"""The promises of the images, read from their Dockerfiles."""

import re
import subprocess
from fnmatch import fnmatch
from importlib.util import find_spec

import pytest

from tests.docker import images
from tests.docker.images import ROOT, Instruction


@pytest.fixture(params=["api", "worker"])
def dockerfile(request: pytest.FixtureRequest) -> list[Instruction]:
    """The instructions of each image in turn."""
    return images.read_dockerfile(request.param)


@pytest.fixture
def final(dockerfile: list[Instruction]) -> list[Instruction]:
    """The instructions of the last stage alone."""
    return [each for each in dockerfile if each.stage == ""]


def test_bases_are_pinned(dockerfile: list[Instruction]) -> None:
    """Every stage starts from one dated tag, or from another stage."""
    stages = {each.stage for each in dockerfile}
    bases = {text.split()[0] for text in images.texts(dockerfile, "FROM")}
    assert bases - stages <= {"${BASE}", "${VARIANT}"}
    (base,) = [text for text in images.texts(dockerfile, "ARG") if text.startswith("BASE=")]
    assert re.fullmatch(r"BASE=debian:trixie-\d{8}-slim", base)


def test_make_builds_on_a_digest() -> None:
    """BASE reaches both builds; without it they get no argument, not an empty one."""
    digest = "debian@sha256:" + "0" * 64
    for given, is_passed in ((["BASE=" + digest], True), ([], False)):
        command = ["make", "--dry-run", "images", *given]
        shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert ("--build-arg BASE=" in shown) is is_passed
        assert (f"--build-arg BASE={digest} " in shown) is is_passed


def test_images_share_their_base() -> None:
    """A machine that runs both images keeps one base."""
    bases = {images.texts(images.read_dockerfile(name), "ARG")[0] for name in ("api", "worker")}
    assert len(bases) == 1


@pytest.mark.parametrize(("name", "user"), [("api", "10002:10001"), ("worker", "10001:10001")])
def test_process_is_not_root(name: str, user: str) -> None:
    """Each image has a fixed user of its own, and nothing is run after it is set."""
    final = [each for each in images.read_dockerfile(name) if each.stage == ""]
    keywords = [each.keyword for each in final]
    assert images.texts(final, "USER") == [user]
    assert "RUN" not in keywords[keywords.index("USER") :]


def test_shared_folders_have_one_owner() -> None:
    """A volume is filled from the image that starts first; the API cannot write archives."""
    shared: dict[str, set[tuple[str, str]]] = {}
    for name in ("api", "worker"):
        runs = " ".join(images.texts(images.read_dockerfile(name), "RUN"))
        for owner, mode, paths in re.findall(
            r"install -d -o (\d+) -g 10001( -m \d+)? ([^&]+)", runs
        ):
            for path in paths.split():
                shared.setdefault(path, set()).add((owner, mode.strip()))
    assert shared["/data/uploads"] == {("10002", "-m 2775")}
    assert shared["/data/archives"] == {("10001", "")}


def test_commands_exist(final: list[Instruction]) -> None:
    """Images start programs of the tuner, not shells, and check their health with them."""
    (command,) = images.texts(final, "CMD")
    (check,) = images.texts(final, "HEALTHCHECK")
    for words in (images.command_of(command), images.command_of(check)):
        if "-m" in words:
            assert find_spec(words[words.index("-m") + 1])
        else:
            assert words[0] in ("tuner", "python3")


def test_api_is_ready_when_it_says_so() -> None:
    """The health check asks /readyz, on the port that the command listens on."""
    final = images.read_dockerfile("api")
    (check,), (command,) = images.texts(final, "HEALTHCHECK"), images.texts(final, "CMD")
    port = images.command_of(command)[-1]
    assert f"127.0.0.1:{port}/readyz" in check
    assert images.texts(final, "EXPOSE") == [port]
    compile(images.command_of(check)[-1], "check", "exec")


def test_copies_exist_and_are_in_the_context(dockerfile: list[Instruction]) -> None:
    """Every file that is copied is there, and .dockerignore lets it in."""
    for text in images.texts(dockerfile, "COPY"):
        if text.startswith("--from="):
            assert text.split()[0].removeprefix("--from=") in {each.stage for each in dockerfile}
            continue
        for source in text.split()[:-1]:
            assert (ROOT / source).exists()
            assert source == "." or is_let_in(source), f"{source} is left out by .dockerignore"
    for source in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        assert is_let_in(source), f"pip needs {source}, which is left out by .dockerignore"


@pytest.mark.parametrize(
    "path",
    [
        ".env",
        ".git/config",
        ".venv/bin/python",
        "build/lib/tuner/cli/main.py",
        "demo-out/tuner.db",
        "tests/database_fixtures.py",
        "tuner/__pycache__/cli.cpython-313.pyc",
    ],
)
def test_context_leaves_out(path: str) -> None:
    """Secrets, history, environments, tests and their data never reach an image."""
    assert not is_let_in(path)


@pytest.mark.parametrize("path", ["api/web/templates", "records/migrations", "tuner/cli/main.py"])
def test_context_takes_in(path: str) -> None:
    """All packages come in, with what lies beside their modules."""
    assert is_let_in(path)


def is_let_in(path: str) -> bool:
    """Return the last pattern of .dockerignore that matches a path or one of its parents."""
    parts = path.split("/")
    prefixes = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
    let_in = True
    for line in images.read_names(".dockerignore"):
        pattern = line.removeprefix("!").removeprefix("**/")
        names = parts if "**/" in line else prefixes
        if any(fnmatch(name, pattern) for name in names):
            let_in = line.startswith("!")
    return let_in
