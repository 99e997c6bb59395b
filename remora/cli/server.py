"""`remora-server`: commands on an installation of the service on this machine; the service's packages have them."""

from __future__ import annotations

import os
import sys

from remora.errors import ConfigurationError
from remora.installation import server_command


def run() -> int:
    """Become the module with the commands; an exit status only where this installation has the client alone."""
    try:
        command, environment = server_command("service.installation", *sys.argv[1:])
    except ConfigurationError as error:
        print(f"remora-server: {error}", file=sys.stderr)
        return 1
    return os.execve(command[0], command, environment)  # noqa: S606  # a list, no shell
