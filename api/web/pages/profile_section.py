"""The profile of a network's library on the page of its job."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from tuner.profiling.page import Bar, bars_of
from tuner.profiling.results import LibraryProfile
from tuner.profiling.verdicts import MEANINGS
from tuner.queries import profiles


@dataclass(frozen=True)
class ProfileSection:
    """The last profile of a network on a target.

    Attributes:
        bars: Calls of a run on the time axis.
        peer_secs: Seconds by workload, for each peer.
        meanings: Meaning of each kind of verdict in it.
        created: Time of the profile.
    """

    profile: LibraryProfile
    bars: list[Bar]
    peer_secs: list[dict[str, float]]
    meanings: dict[str, str]
    created: datetime


def read_section(session: Session, job_id: int) -> ProfileSection | None:
    """Return the last profile of a job; None if there is none that this version can show."""
    stored = profiles.read_profile(session, job_id)
    if stored is None:
        return None
    profile = stored.profile
    kinds = {kernel.verdict.kind for kernel in profile.kernels}
    return ProfileSection(
        profile=profile,
        bars=bars_of(profile),
        peer_secs=[profile.peer_secs(peer) for peer in profile.peers],
        meanings={kind: text for kind, text in MEANINGS.items() if kind in kinds},
        created=stored.created,
    )
