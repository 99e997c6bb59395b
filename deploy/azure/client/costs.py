"""What the two sizes of a deployment cost in a month, without nodes, from the catalogue and from prices.json.

python -m deploy.azure.client.costs      # writes the table into deploy/azure/README.md
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.azure.catalogue import BY_NAME, TABLE_DATE

FOLDER = Path(__file__).parents[1]
README = FOLDER / "README.md"
SIZES = ("trial", "team")
PLACE = "each further place"
HOURS = 730
#: The table stands between these two lines of the README.
BEGIN, END = "<!-- costs: python -m deploy.azure.client.costs -->", "<!-- end of costs -->"


def prices() -> dict[str, Any]:
    """What the catalogue does not have, with sources."""
    found: dict[str, Any] = json.loads((FOLDER / "prices.json").read_text())
    return found


def parts_of(parameters: Mapping[str, Any]) -> dict[str, int]:
    """What a deployment with these parameters is billed for: machines by their size, parts by their name."""
    machines = [one for one in (parameters["serviceSize"], parameters.get("headSize")) if one]
    found = {one: machines.count(one) for one in machines}
    found[f"disk of {parameters.get('diskGb', 64)} GiB"] = len(machines)
    found |= {"NAT gateway": 1, "public address": 2, "100 GiB of results": 1, "2 GiB of logs": 1}
    zones = 0
    if parameters.get("postgres"):
        found |= {"PostgreSQL, 2 vCores": 1, "PostgreSQL, 64 GiB": 1}
        zones += 1
    if parameters.get("privateEndpoints"):
        found["private endpoint"] = 3
        zones += 3
    return found | ({"private DNS zone": zones} if zones else {})


def parts_of_a_place() -> dict[str, int]:
    """What each further place is billed for, besides its nodes and what they send."""
    return {"NAT gateway": 1, "public address": 1}


def monthly_usd(part: str, known: Mapping[str, Any]) -> float:
    """USD of one part in a month.  Raises KeyError for one whose price is not known."""
    if part in BY_NAME:
        return HOURS * BY_NAME[part].on_demand_usd
    price = known["machines"].get(part) or known["parts"][part]
    return float(price.get("usd_per_month") or HOURS * price["usd_per_hour"])


def is_seen(part: str, known: Mapping[str, Any]) -> bool:
    """True when the price was read where the file says."""
    return part in BY_NAME or bool((known["machines"].get(part) or known["parts"][part])["seen"])


def parameters_of(size: str) -> dict[str, Any]:
    """The parameters of a size's file."""
    file = json.loads((FOLDER / f"{size}.parameters.json").read_text())
    return {name: one["value"] for name, one in file["parameters"].items()}


def table() -> str:
    """Markdown: one line for each part, the sums, and the dates."""
    known = prices()
    counts = {size: parts_of(parameters_of(size)) for size in SIZES} | {PLACE: parts_of_a_place()}
    parts = sorted(
        {part for one in counts.values() for part in one}, key=lambda one: -monthly_usd(one, known)
    )
    lines = [f"| part | USD a month, each | {' | '.join(counts)} |", "|---|---" + "|---" * len(counts) + "|"]
    for part in parts:
        mark = "" if is_seen(part, known) else " ?"
        numbers = " | ".join(str(counts[size].get(part, "")) for size in counts)
        lines.append(f"| {part} | {monthly_usd(part, known):.2f}{mark} | {numbers} |")
    sums = [
        sum(number * monthly_usd(part, known) for part, number in counts[size].items()) for size in counts
    ]
    lines.append("| **USD a month** | | " + " | ".join(f"**{one:.0f}**" for one in sums) + " |")
    lines.append("| USD a day | | " + " | ".join(f"{one * 24 / HOURS:.2f}" for one in sums) + " |")
    dated = f"Prices of {known['region']}: machines of {TABLE_DATE}, the rest of {known['date']}."
    return "\n".join([*lines, "", dated])


def with_table(text: str) -> str:
    """The README's text with the table of now."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    README.write_text(with_table(README.read_text()))
