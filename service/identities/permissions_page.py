"""The table of `docs/identities.md` that says who may do what, made from the table of permissions.

python -m service.identities.permissions_page docs/identities.md    # writes it into the page
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

from service.identities.permissions import PERMISSIONS, Permission, Where

BEGIN, END = "<!-- permissions: begin -->", "<!-- permissions: end -->"


def sentence(permission: Permission) -> str:
    """Who may, in words."""
    if permission.is_open:
        return "everyone, without a token"
    if permission.role is None:
        return "every principal"
    if permission.where is Where.SERVICE:
        return "operators"
    text = f"`{permission.role.value}` in {permission.where.value}"
    own = ", or `submitter` who submitted it" if permission.is_enough_to_own else ""
    return text + own


def table() -> str:
    """The table, with operations that need the same in one row."""
    rows: defaultdict[str, list[str]] = defaultdict(list)
    for operation, permission in PERMISSIONS.items():
        rows[sentence(permission)].append(f"`{operation}`")
    lines = [f"| {who} | {', '.join(operations)} |" for who, operations in rows.items()]
    return "\n".join(["| who | operations |", "|---|---|", *lines])


def with_table(page: str) -> str:
    """The page with the table between its marks.  Raises ValueError where the marks are not there."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"the page has no {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_table(path.read_text()))
