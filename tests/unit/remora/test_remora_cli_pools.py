"""The tables of `remora pools` and `remora projects`: what may be bought, and what projects hold of their shares."""

from __future__ import annotations

import re

from remora.cli.exits import ExitCode
from remora.cli.output import date
from remora.views import Pool, Project, ProjectUse, SoldOffering
from tests.command_line import Cli
from tests.unit.remora.fake_service import FakeService


def test_pools_show_what_they_may_buy_the_cheapest_first(cli: Cli, service: FakeService) -> None:
    sold = [
        SoldOffering(offering="a/1/on-demand", price_per_hour=0.2, is_price_assumed=True),
        SoldOffering(offering="a/2/spot", price_per_hour=0.01, evictions_per_hour=0.05, closed_until=99.0),
        SoldOffering(offering="a/1/spot", price_per_hour=0.04, evictions_per_hour=0.125),
    ]
    service.pools = [Pool(name="cpu", max_nodes=4, offerings=sold), Pool(name="old", cluster=None)]
    assert cli("pools") == ExitCode.OK
    table = [re.split(r" {2,}", line) for line in cli.out.split("\n\n")[1].splitlines()]
    assert table == [
        ["POOL MAY BUY", "OFFERING", "USD PER HOUR", "PREEMPTED IN AN HOUR", "THE CLOUD"],
        ["cpu", "a/1/spot", "0.0400", "12.5%", "sells it"],
        ["cpu", "a/1/on-demand", "0.2000 (assumed)", "never", "sells it"],
        ["cpu", "a/2/spot", "0.0100", "5.0%", f"refuses it until {date(99.0)}"],
    ]
    many = [SoldOffering(offering=f"a{number}/1/spot", price_per_hour=1.0) for number in range(15)]
    service.pools = [Pool(name="cpu", max_nodes=4, offerings=many)]
    assert cli("pools") == ExitCode.OK
    assert cli.out.splitlines()[-1].split(maxsplit=1) == ["cpu", "and 3 more, which --json shows"]


def test_projects_show_their_shares_and_what_they_hold_of_them(cli: Cli, service: FakeService) -> None:
    service.projects = [
        Project(
            name="ray",
            share=1.5,
            share_held=0.254,
            uses={"gpus": ProjectUse(used=2, limit=8), "bundle_bytes": ProjectUse(used=2**20, limit=None)},
        ),
        Project(name="idle", uses={"jobs": ProjectUse(used=0, limit=None)}),
    ]
    assert cli("projects") == ExitCode.OK
    head, *rows = cli.out.splitlines()
    assert head.split() == ["PROJECT", "SHARE", "HOLDS", "OF", "USED", "LIMIT"]
    assert [row.split() for row in rows] == [
        ["ray", "1.5", "25.4%", "gpus", "2", "8"],
        ["ray", "1.5", "25.4%", "bundle_bytes", "1.0", "MiB"],
        ["idle", "1"],
    ]
