"""remora-server: the commands are in `commands`; `health`, which an engine asks for all the time, loads little."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(words: Sequence[str]) -> int:
    """Run one command; the exit status of the process."""
    if words[:1] == ["health"]:
        from service.installation import health

        return health.main(words)
    from service.installation import commands

    return commands.main(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
