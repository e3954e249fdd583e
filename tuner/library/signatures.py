"""Ed25519 signatures of what comes from elsewhere and is loaded as code: entries and libraries.

The content of an entry or a manifest names the SHA-256 of every file with it, so that one
signature covers them all.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tuner.errors import RequestError
from tuner.library import manifest as manifests
from tuner.settings import Settings

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

#: Name of the signature in the folder of a library.
SIGNATURE = "manifest.sig"
# A signature of one kind must not serve as one of another.
Kind = Literal["entry", "library"]

_END = b"-----END PUBLIC KEY-----"


class Unsigned(Exception):  # noqa: N818  it is the state of a file
    """The signature of an entry or a library is missing or not accepted; the text says why."""


@dataclass(frozen=True)
class SignaturePolicy:
    """Keys to sign with, and signatures that are accepted.

    Attributes:
        key: Key to sign with; None to sign nothing.
        trusted: Keys whose signatures are accepted, the own one among them.
        is_required: True to refuse what has no signature.
    """

    key: "Ed25519PrivateKey | None" = None
    trusted: Sequence["Ed25519PublicKey"] = ()
    is_required: bool = False

    @property
    def checks(self) -> bool:
        """True if signatures matter here."""
        return bool(self.trusted) or self.is_required

    def sign(self, kind: Kind, content: bytes) -> bytes | None:
        """Return the signature of an entry or a manifest; None without a key."""
        return None if self.key is None else self.key.sign(_message(kind, content))

    def check(self, kind: Kind, content: bytes, signature: bytes | None) -> None:
        """Accept an entry or a manifest.

        Raises:
            Unsigned: If the signature is wrong, of another key, or missing though required.
        """
        if not self.checks:
            return
        if signature is None:
            if self.is_required:
                raise Unsigned("it has no signature")
            return
        if not any(_is_valid(key, signature, _message(kind, content)) for key in self.trusted):
            raise Unsigned("its signature is not by a trusted key, or it was altered since")


#: Sign nothing, and accept everything.
NO_POLICY = SignaturePolicy()


def policy_of(settings: Settings) -> SignaturePolicy:
    """Read the keys that the settings name.

    Raises:
        RequestError: If a key cannot be read, or signatures are required and no key is trusted.
    """
    key = None if settings.signing_key is None else _private_key(settings.signing_key)
    trusted = [] if settings.trusted_keys is None else _public_keys(settings.trusted_keys)
    if key is not None:
        trusted.append(key.public_key())
    is_required = settings.signatures == "required"
    if is_required and not trusted:
        raise RequestError("signatures are required, but no key is trusted: set trusted_keys")
    return SignaturePolicy(key, tuple(trusted), is_required)


def sign_library(folder: Path, policy: SignaturePolicy) -> None:
    """Write the signature of a library beside its manifest, if there is a key."""
    if policy.key is None:
        return
    signature = policy.sign("library", (folder / manifests.MANIFEST).read_bytes())
    (folder / SIGNATURE).write_bytes(signature or b"")


def check_library(folder: Path, policy: SignaturePolicy) -> None:
    """Check the signature of a library whose files have the checksums of its manifest.

    Raises:
        RequestError: If it is refused.
    """
    if not policy.checks:
        return
    content, path = (folder / manifests.MANIFEST).read_bytes(), folder / SIGNATURE
    try:
        policy.check("library", content, path.read_bytes() if path.is_file() else None)
        names = [entry.name for entry in folder.iterdir()]
        manifest = manifests.parse(content, "it")
        unknown = sorted(set(names) - {manifests.MANIFEST, SIGNATURE, *manifest.files})
        if unknown:
            raise Unsigned(f"its manifest does not name {unknown[0]}")
    except Unsigned as error:
        raise RequestError(f"the library is refused: {error}") from error


def _message(kind: Kind, content: bytes) -> bytes:
    return f"subgraph-tuner {kind} 1\n{hashlib.sha256(content).hexdigest()}\n".encode()


def _is_valid(key: "Ed25519PublicKey", signature: bytes, message: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, message)
    except InvalidSignature:
        return False
    return True


def _private_key(path: Path) -> "Ed25519PrivateKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(_content("signing_key", path), None)
    except (ValueError, TypeError) as error:
        raise RequestError(f"signing_key: {path} is not a private key in PEM: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise RequestError(f"signing_key: {path} is not an Ed25519 key")
    return key


def _public_keys(path: Path) -> list["Ed25519PublicKey"]:
    """Read the keys of a file, one PEM block after the other."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    keys = []
    for block in _content("trusted_keys", path).split(_END)[:-1]:
        try:
            key = load_pem_public_key(block + _END)
        except ValueError as error:
            raise RequestError(f"trusted_keys: {path} is not in PEM: {error}") from error
        if not isinstance(key, Ed25519PublicKey):
            raise RequestError(f"trusted_keys: {path} has a key that is not an Ed25519 key")
        keys.append(key)
    if not keys:
        raise RequestError(f"trusted_keys: {path} has no public key in PEM")
    return keys


def _content(setting: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RequestError(f"{setting}: cannot read {path}: {error.strerror}") from error
