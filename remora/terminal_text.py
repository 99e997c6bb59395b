"""Text of scripts, services and files without what a terminal would obey.  Pure."""

from __future__ import annotations

import re

#: What a terminal takes for a command: colours, moves of the cursor, titles, links.  What it draws is only noise here.
_SEQUENCE = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, moves
    "|(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f\n]*+(?:\x07|\x1b\\\\|\x9c)"  # titles, links
    "|\x1b[ -/]*[0-~]"  # all others
)
#: Control characters but tab and line feed, what ends a line elsewhere, and what turns the direction of writing.
_UNSAFE = (
    *(code for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in (0x09, 0x0A)),
    *(0x061C, 0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)),
)
_VISIBLE = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in _UNSAFE}
_IN_JSON = {code: f"\\u{code:04x}" for code in _UNSAFE}


def neutral(text: str) -> str:
    r"""The text with line feeds and tabs as its only controls: sequences are gone, all others are shown as `\x07`.

    Of a line that was written over by carriage returns, as bars of progress are, the last version stays.
    """
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return _SEQUENCE.sub("", text).translate(_VISIBLE)


def printable(text: str) -> str:
    """The text as one line, with a space for each control character."""
    return "".join(one if one.isprintable() else " " for one in text)


def one_line(text: str) -> str:
    """That without spaces around it."""
    return printable(text).strip()


def neutral_json(document: str) -> str:
    """A JSON document that means the same, with such characters escaped; JSON leaves some as they are."""
    return document.translate({**_IN_JSON, 0x0D: None})
