"""The profile of a network's library on the page of its job."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from records.tuning import profiles
from tuner.profiling.page import Bar, bars_of
from tuner.profiling.results import LibraryProfile, from_json
from tuner.profiling.verdicts import MEANINGS


@dataclass(frozen=True)
class ProfileSection:
    """The last profile of a network on a target.

    Attributes:
        profile: The profile.
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


def read_section(
    session: Session, network_id: int | None, target_id: int | None
) -> ProfileSection | None:
    """Return the last profile; None without one, or if another version of the tuner wrote it."""
    if network_id is None or target_id is None:
        return None
    row = profiles.profile_of(session, network_id, target_id)
    if row is None:
        return None
    try:
        profile = from_json(row.content)
        bars = bars_of(profile)
    except (TypeError, KeyError):
        return None
    kinds = {kernel.verdict.kind for kernel in profile.kernels}
    return ProfileSection(
        profile=profile,
        bars=bars,
        peer_secs=[profile.peer_secs(peer) for peer in profile.peers],
        meanings={kind: text for kind, text in MEANINGS.items() if kind in kinds},
        created=row.created,
    )
