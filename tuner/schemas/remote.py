"""Calls and packs that a service has for the devices that measure over HTTPS."""

from dataclasses import dataclass

from tuner.schemas.base import Schema


@dataclass(frozen=True, kw_only=True)
class LeasedCall(Schema):
    """A call of a function on a device.

    Attributes:
        id: Name of the call, for its answer.
        function: Function of the engine.
        arguments: Its arguments, MessagePack in Base64.
        files: Digests of the files that the arguments name.
        timeout_secs: Time limit of the call.
    """

    id: str
    function: str
    arguments: str
    files: list[str]
    timeout_secs: float


@dataclass(frozen=True, kw_only=True)
class LeasedCalls(Schema):
    """Calls that were leased to the process of a device, the first to run first."""

    items: list[LeasedCall]


@dataclass(frozen=True, kw_only=True)
class LeasedPack(Schema):
    """A pack that was leased to the process of a GPU.

    Attributes:
        pack: Id of the pack; empty if there is none for this GPU.
        sha256: Digest of its file.
        n_bytes: Size of its file.
        minutes: Time for which it is measured.
        n_lines: Lines of its results that the service has.
    """

    pack: str = ""
    sha256: str = ""
    n_bytes: int = 0
    minutes: float = 0.0
    n_lines: int = 0
