"""Where the profiles of a job lie in its storage, and their bounds; what supervisors, drivers and the service know."""

from __future__ import annotations

#: Bytes of a compressed trace.
MOST_BYTES = 32 << 20
#: Steps of one profile.
MOST_STEPS = 100
#: Seconds within which a rank has to have taken the steps and stored the trace.
PROFILE_S = 300.0


def profile_name(job_id: str, token: str) -> str:
    """The name of a trace in the storage of the job's checkpoints (pure)."""
    return f"jobs/{job_id}/profiles/{token}.json.gz"
