"""A command that is written as one text: split into words, or run by bash where only a shell understands it.  Pure.

The text means what it means in bash.  Where words and quotes are all that it has, no shell is started, so that a signal
and an exit code are the program's own, and Python is forked from a warm interpreter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from remora.job_commands.expressions import EXPRESSION
from remora.job_commands.shell_quotes import Value, fill

#: One token: part of a word or the space between two; each begins with a character that no other one begins with.
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)|(?P<bare>[^ \t\r\n'"\\]+)|'(?P<single>[^']*)'"""
    r"""|"(?P<double>[^"\\]*+(?:\\.[^"\\]*+)*)"|\\(?P<escaped>.)""",
    re.DOTALL,
)
#: Within "", a backslash stands for itself but before these.
_ESCAPE = re.compile(r'\\(["\\])')


def tokens_of(line: str) -> Iterator[re.Match[str]]:
    """The parts of words and the spaces between them; what a token is, says the name of its group.

    Raises ValueError with the sentences of `shlex.split`: `No closing quotation`, `No escaped character`.
    """
    at = 0
    while at < len(line):
        token = _TOKEN.match(line, at)
        if token is None:
            is_escape = line[at] == "\\" or _ends_in_escape(line, at)
            raise ValueError("No escaped character" if is_escape else "No closing quotation")
        at = token.end()
        yield token


def words_of(line: str) -> list[str]:
    """What `shlex.split` gives, which copies a word for each of its characters.  Raises ValueError as it does."""
    words: list[str] = []
    parts: list[str] | None = None
    for token in tokens_of(line):
        if token["space"] is not None:
            if parts is not None:
                words.append("".join(parts))
            parts = None
            continue
        parts = [] if parts is None else parts
        text = token[token.lastgroup or 0]
        parts.append(_ESCAPE.sub(r"\1", text) if token.lastgroup == "double" else text)
    return words if parts is None else [*words, "".join(parts)]


def _ends_in_escape(line: str, at: int) -> bool:
    """True when the quote that is open at `at` is a " and the line ends behind a backslash that escapes nothing."""
    backslashes = len(line) - len(line.rstrip("\\"))
    return line[at] == '"' and backslashes % 2 == 1


#: What starts the script of a shell.
SHELL = ("bash", "-c")
#: What only a shell understands outside of quotes, and within "".
_ACTIVE = re.compile(r"[|&;<>()`$]")
_ACTIVE_IN_QUOTES = re.compile(r"`|\$[A-Za-z0-9_@*#?$!({-]|\\[$`\n]")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_BRACES = re.compile(r"\{([^{}]*)\}")
#: First words that no program stands for, or another one than the shell's own.
_BUILTIN = re.compile(
    r"[.:!{]|\[\[|alias|case|cd|command|declare|eval|exec|exit|export|for|function|if|let|local|popd|pushd|read"
    r"|readonly|return|select|set|shift|shopt|source|time|times|trap|type|typeset|ulimit|umask|unset|until|wait|while"
)


def argument_list(command: str) -> list[str]:
    """The command as an argument list: its words, or bash with the whole as a script.

    In a script an expression stands in quotes, as its value may be a path with spaces.
    Raises ValueError for a command without words or with a quote that is not closed.
    """
    if not command.strip():
        raise ValueError("it is empty")
    if not needs_shell(command):
        return words_of(command)
    quoted = fill(command.strip(), EXPRESSION, lambda found: Value(found.group(), is_expression=True))
    return [*SHELL, quoted]


def needs_shell(command: str) -> bool:
    """True when the command means something else, or nothing, without a shell.  Raises ValueError as above."""
    is_first = True
    # Expressions of ours are filled in before anything runs.
    for word in _skeletons(EXPRESSION.sub("x", command.strip())):
        if word is None or _is_expanded(word):
            return True
        if is_first and (_BUILTIN.fullmatch(word) or _ASSIGNMENT.match(word)):
            return True
        is_first = False
    return False


def _skeletons(command: str) -> Iterator[str | None]:
    """Each word with x in place of what is quoted in it; None, and no more, where only a shell can go on."""
    word = ""
    for token in tokens_of(command):
        kind, text = token.lastgroup, token[token.lastgroup or 0]
        if kind == "space":
            yield word
            if "\n" in text:
                yield None
            word = ""
        elif kind == "bare":
            if _ACTIVE.search(text) or (not word and text.startswith("#")):
                yield None
            word += text
        else:
            is_active = kind == "double" and _ACTIVE_IN_QUOTES.search(text)
            if is_active or (kind == "escaped" and text == "\n"):
                yield None
            word += "x"
    yield word


def _is_expanded(word: str) -> bool:
    """A shell would look for files by this word, for a user's home, or make several words of it.

    What stands behind a `=`, as in `layers=[64,32]`, is the program's own: files are not named like that.
    """
    head = word.partition("=")[0]
    has_brackets = "[" in head and "]" in head[head.index("[") :]
    braces = _BRACES.findall(head)
    return (
        head.startswith("~")
        or "*" in head
        or "?" in head
        or has_brackets
        or any("," in inside or ".." in inside for inside in braces)
    )
