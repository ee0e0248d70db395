"""Which globs may select failures (`recycle.failures.patterns`); the agent matches them."""

from __future__ import annotations

import re

#: Of a pattern, and of all patterns of a group; the same numbers stand in the CRD's schema.
MAX_LENGTH, MAX_PATTERNS = 200, 32

#: What nobody writes but in a regular expression; the same stands in the CRD's schema.
REGULAR = r"\\[AZbBdDsSwW.(){}|^$\[\]]|\.[*+]|\(\?|^\^|\$$"

_REGULAR = re.compile(REGULAR)

#: In a regular expression, what may match any text: `.*`, `\w+`, `[0-9]{2,}`.
_ANY_TEXT = re.compile(r"(?:\\[dDsSwW]|(?<!\\)\.|(?<!\\)\[[^\]]*\])(?:[*+]|\{[^}]*\})\??")


def problem_of(pattern: object) -> str:
    """
    Say what is wrong with a glob, and how to fix it; empty if nothing is.

    Version 0.1.0 searched for regular expressions. Read as a glob, almost none of them would ever
    match, and nobody would notice: so they are refused.
    """
    if not isinstance(pattern, str) or not pattern:
        return "must be a text that is not empty"
    if len(pattern) > MAX_LENGTH:
        return f"has {len(pattern)} characters; {MAX_LENGTH} are allowed"
    if _REGULAR.search(pattern):
        return (
            "is a regular expression; patterns are globs, in which * stands for any text and ? for"
            f" one character: write {_globs(pattern)}"
        )
    if "*" not in pattern:
        return (
            "must have a *, which stands for any text, because the whole of repr(exception) is"
            f" compared: write {_globs(pattern)}"
        )
    return ""


def _globs(regular: str) -> str:
    """Globs that say about the same as a regular expression without groups, for people."""
    text = re.sub(r"^\(\?[a-zA-Z]+\)", "", regular)
    globs = [_glob(part) for part in text.split("|")]
    has_groups = "(?" in text or ("|" in text and re.search(r"(?<!\\)\(", text))
    if has_groups or "*" in globs:
        return "a glob for each alternative, such as *CUDA error*"
    return " and ".join(f'"{glob}"' for glob in globs)


def _glob(regular: str) -> str:
    text = _ANY_TEXT.sub("*", regular.removeprefix("^").removesuffix("$"))
    text = re.sub(r"\\[AZbB]", "", text)
    text = re.sub(r"\\[dDsSwW]", "?", text)
    text = re.sub(r"\\(.)", r"\1", text)
    return re.sub(r"\*+", "*", f"*{text}*")
