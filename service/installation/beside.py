"""Commands of remora-server for machines of the Ray cluster that have the release, and no installation of it."""

from __future__ import annotations

import argparse
import sys

from cluster.head.__main__ import main as be_part
from cluster.head.commands import Part
from cluster.local.certificates import main as make_certificates
from service.installation.layout import Layout


def drivers(given: argparse.Namespace, _: Layout) -> None:
    """Become a Ray node for drivers; exits with a sentence when that cannot be."""
    where = ["--home", str(given.home), "--head", given.head, "--address", given.address]
    sys.exit(be_part([str(Part.DRIVERS), *where, "--name", given.name]))


def certificates(given: argparse.Namespace, _: Layout) -> None:
    """Make the authority of a home and a certificate of the head's machine; exits with a sentence on failure."""
    sys.exit(make_certificates([str(given.home_of_head), *given.addresses]))
