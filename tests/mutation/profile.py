"""How tests run while mutants are tried: Hypothesis draws alike for each, and nothing is made smaller for people.

They end with the process that runs them, however that ends.
"""

from __future__ import annotations

import ctypes
import signal

from hypothesis import HealthCheck, Phase, settings

#: Given to pytest as `--hypothesis-profile`, with this module as a plugin.
NAME = "mutation"

settings.register_profile(
    NAME,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Have the kernel end this process when its parent ends; a fork does not inherit that."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


end_with_parent()
