"""Keys for signatures, and files of them as ``openssl`` writes them."""

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from tuner.library.signatures import SignaturePolicy

OURS = Ed25519PrivateKey.from_private_bytes(b"a" * 32)
THEIRS = Ed25519PrivateKey.from_private_bytes(b"b" * 32)

#: Signs, requires our signature, accepts missing ones, and signs with a key that is not trusted.
SIGNING = SignaturePolicy(OURS, (OURS.public_key(),))
REQUIRING = SignaturePolicy(None, (OURS.public_key(),), is_required=True)
CHECKING = SignaturePolicy(None, (OURS.public_key(),))
STRANGER = SignaturePolicy(THEIRS, (THEIRS.public_key(),))


def write_private(path: Path, key: Ed25519PrivateKey = OURS) -> Path:
    """Write a private key."""
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return path


def write_public(path: Path, *keys: Ed25519PrivateKey) -> Path:
    """Write the public halves of keys, one after the other."""
    form = (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    path.write_bytes(b"".join(key.public_key().public_bytes(*form) for key in keys))
    return path
