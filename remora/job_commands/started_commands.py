"""Which commands a command starts through a shell or through a program that starts another one.  Pure.

What it finds is good enough to name a launcher to its owner; it is no parser of a shell's language.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import PurePath

_SHELLS = ("sh", "bash", "dash", "zsh")
#: Programs and words of a shell that start the command behind their options.
_STARTERS = frozenset(
    (
        *(
            "env",
            "nohup",
            "nice",
            "ionice",
            "time",
            "timeout",
            "setsid",
            "stdbuf",
            "numactl",
            "taskset",
            "chrt",
        ),
        *("exec", "command", "eval", "sudo"),
    )
)
#: Words of a command that are looked at; a launcher does not come later in practice.
_LOOKED_AT = 60
#: Characters of a shell's line that are looked at, for the same reason, and shells within shells.
_LINE_LOOKED_AT = 16 * 1024
_SHELLS_LOOKED_AT = 4
#: Words that a command may follow.
_KEYWORDS = frozenset(("if", "then", "elif", "else", "do", "while", "until", "!", "{"))
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_BREAKS = ";&|()`\n"


def is_shell(words: list[str]) -> bool:
    """Whether a shell runs these words: it reports a signal that ended its script as 128 plus the signal's number."""
    return bool(words) and PurePath(words[0]).name in _SHELLS


def started_by(words: list[str], shells: int = _SHELLS_LOOKED_AT) -> Iterator[tuple[str, list[str]]]:
    """Each argument list that may be a command which these words start, with what starts it: `env`, `the shell`.

    A word behind an option may be its value as well as a command, so both are returned.
    """
    starter, place = "", 0
    while place < min(len(words), _LOOKED_AT):
        program = PurePath(words[place]).name
        if starter:
            yield starter, words[place : place + _LOOKED_AT]
        if program in _SHELLS:
            yield from _of_shell(words[place:], shells) if shells else ()
            return
        if program in _STARTERS:
            starter = program
        elif not starter or _is_a_command(words, place):
            return
        place += 1


def _is_a_command(words: list[str], place: int) -> bool:
    word = words[place]
    is_option = word.startswith("-") or bool(_ASSIGNMENT.match(word)) or word[:1].isdigit()
    return not is_option and not words[place - 1].startswith("-")


def _of_shell(words: list[str], shells: int) -> Iterator[tuple[str, list[str]]]:
    script = _script_of(words)
    for command in [] if script is None else commands_in(script[:_LINE_LOOKED_AT]):
        yield "the shell", command
        for _, inner in started_by(command, shells - 1):
            yield "the shell", inner


def _script_of(words: list[str]) -> str | None:
    """What a shell is given by -c; None when it is not."""
    place, is_script = 1, False
    while place < len(words) and words[place][:1] in ("-", "+") and words[place] not in ("-", "--"):
        word = words[place]
        if word.startswith("--"):
            place += word in ("--rcfile", "--init-file")
        else:
            is_script = is_script or (word[0] == "-" and "c" in word)
            place += word.count("o") + word.count("O")
        place += 1
    place += words[place : place + 1] in (["-"], ["--"])
    return words[place] if is_script and place < len(words) else None


def commands_in(script: str) -> list[list[str]]:
    """The simple commands of a shell's script, without the assignments and keywords before them."""
    return [command for words in _commands_in(script.replace("\\\n", " ")) if (command := _bare(words))]


def _bare(words: list[str]) -> list[str]:
    place = 0
    while place < len(words) and (words[place] in _KEYWORDS or _ASSIGNMENT.match(words[place])):
        place += 1
    return words[place:]


def _commands_in(script: str) -> list[list[str]]:
    lexer = shlex.shlex(script, posix=True, punctuation_chars=f"{_BREAKS}<>")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        words = list(lexer)
    except ValueError:  # a quote in a comment or in a heredoc, so quotes say nothing
        return [part.split() for part in re.split(f"[{_BREAKS}]", script)]
    parts: list[list[str]] = [[]]
    is_file = False
    for word in words:
        if word and not word.strip(f"{_BREAKS}<>"):
            is_file = word[-1] in "<>&" and ("<" in word or ">" in word)
            if not is_file:
                parts.append([])
        elif is_file:
            is_file = False
        else:
            parts[-1].append(word)
    return parts
