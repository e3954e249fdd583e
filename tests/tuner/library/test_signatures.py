"""Signatures of entries and libraries: valid, missing, of another key, of altered content."""

import json
import shutil
import subprocess
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.tuner.library import signing_keys as keys
from tests.tuner.library import small_library as small
from tuner.errors import RequestError
from tuner.library import signatures
from tuner.library.signatures import NO_POLICY, SignaturePolicy, Unsigned
from tuner.settings import read_settings

CONTENT = b"content"


@pytest.mark.parametrize("kind", ["entry", "library"])
def test_a_signature_of_a_trusted_key_is_accepted(kind: signatures.Kind) -> None:
    """By one who requires it, and by one who only checks."""
    signature = keys.SIGNING.sign(kind, CONTENT)

    keys.REQUIRING.check(kind, CONTENT, signature)
    keys.CHECKING.check(kind, CONTENT, signature)


@pytest.mark.parametrize("policy", [keys.REQUIRING, keys.CHECKING])
@pytest.mark.parametrize(
    "signature",
    [
        keys.SIGNING.sign("entry", b"other content"),
        keys.SIGNING.sign("library", CONTENT),
        keys.STRANGER.sign("entry", CONTENT),
        b"",
        b"x" * 64,
    ],
    ids=["altered", "of another kind", "wrong key", "empty", "noise"],
)
def test_any_other_signature_is_refused(policy: SignaturePolicy, signature: bytes) -> None:
    """Also where missing ones are accepted."""
    with pytest.raises(Unsigned, match="not by a trusted key, or it was altered"):
        policy.check("entry", CONTENT, signature)


def test_a_missing_signature_is_refused_where_it_is_required() -> None:
    """And nowhere else."""
    keys.CHECKING.check("entry", CONTENT, None)
    NO_POLICY.check("entry", CONTENT, None)
    with pytest.raises(Unsigned, match="no signature"):
        keys.REQUIRING.check("entry", CONTENT, None)


def test_keys_are_those_that_openssl_makes(tmp_path: Path) -> None:
    """By the commands of docs/cache.md."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    private, public = tmp_path / "key.pem", tmp_path / "trusted.pem"
    make = ["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(private)]
    show = ["openssl", "pkey", "-in", str(private), "-pubout", "-out", str(public)]
    for command in (make, show):
        subprocess.run(command, check=True, capture_output=True)
    signing = signatures.policy_of(read_settings({"signing_key": private}, {}))
    flags = {"trusted_keys": public, "signatures": "required"}

    requiring = signatures.policy_of(read_settings(flags, {}))

    requiring.check("entry", CONTENT, signing.sign("entry", CONTENT))
    assert not requiring.key


def test_several_keys_can_be_trusted(tmp_path: Path) -> None:
    """One machine's own key is among them."""
    public = keys.write_public(tmp_path / "trusted.pem", keys.THEIRS)
    private = keys.write_private(tmp_path / "key.pem", keys.OURS)
    flags = {"signing_key": private, "trusted_keys": public, "signatures": "required"}

    policy = signatures.policy_of(read_settings(flags, {}))

    policy.check("entry", CONTENT, keys.STRANGER.sign("entry", CONTENT))
    policy.check("entry", CONTENT, keys.SIGNING.sign("entry", CONTENT))


@pytest.mark.parametrize(
    ("setting", "content", "message"),
    [
        ("signing_key", None, "cannot read"),
        ("signing_key", b"no key", "not a private key"),
        ("trusted_keys", None, "cannot read"),
        ("trusted_keys", b"", "no public key"),
        ("trusted_keys", b"x\n-----END PUBLIC KEY-----\n", "not in PEM"),
        (
            "trusted_keys",
            Ed448PrivateKey.generate()
            .public_key()
            .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
            "not an Ed25519 key",
        ),
    ],
)
def test_a_bad_key_is_refused(
    tmp_path: Path, setting: str, content: bytes | None, message: str
) -> None:
    """The message names the setting and the file."""
    path = tmp_path / "key.pem"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(RequestError, match=f"{setting}: .*{message}"):
        signatures.policy_of(read_settings({setting: path}, {}))


def test_signatures_cannot_be_required_of_nobody() -> None:
    """Everything would be refused."""
    with pytest.raises(RequestError, match="no key is trusted"):
        signatures.policy_of(read_settings({"signatures": "required"}, {}))


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A signed library."""
    folder = tmp_path / "library"
    folder.mkdir()
    (folder / "lib.so").write_bytes(CONTENT)
    described = small.described(files={"lib.so": sha256(CONTENT).hexdigest()})
    (folder / "manifest.json").write_text(json.dumps(asdict(described)))
    signatures.sign_library(folder, keys.SIGNING)
    return folder


def test_a_signed_library_is_accepted(library: Path) -> None:
    """Its manifest has the checksum of every file."""
    signatures.check_library(library, keys.REQUIRING)


def test_a_library_with_another_file_is_refused(library: Path) -> None:
    """The signature does not cover it."""
    (library / "more.so").touch()

    with pytest.raises(RequestError, match=r"does not name more\.so"):
        signatures.check_library(library, keys.REQUIRING)


@pytest.mark.parametrize("damage", ["manifest", "unsigned", "stranger"])
def test_another_library_is_refused(library: Path, damage: str) -> None:
    """With an altered manifest, without a signature, or with that of a stranger."""
    if damage == "manifest":
        manifest = library / "manifest.json"
        manifest.write_text(manifest.read_text().replace("}", " }", 1))
    elif damage == "unsigned":
        (library / "manifest.sig").unlink()
    else:
        signatures.sign_library(library, keys.STRANGER)

    with pytest.raises(RequestError, match="the library is refused"):
        signatures.check_library(library, keys.REQUIRING)
