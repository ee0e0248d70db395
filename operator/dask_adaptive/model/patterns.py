"""Which regular expressions a scheduler may be given: they run in its event loop."""

from __future__ import annotations

import re
import warnings

#: As long as a pattern may be; the same number stands in the CRD's schema.
MAX_LENGTH = 200

_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]")
_COUNT = re.compile(r"\{[0-9]*(?:,[0-9]*)?\}")


def problem_of(pattern: object) -> str:
    """
    Say what is wrong with a pattern, and how to mend it; empty if nothing is.

    Python's `re` backtracks: a repeated group that itself repeats or chooses can take exponential
    time on the text of one exception, and the scheduler would stand still. What only newer Pythons
    know is refused too, because schedulers may run older ones than the operator.
    """
    if not isinstance(pattern, str) or not pattern:
        return "must be a text that is not empty"
    if len(pattern) > MAX_LENGTH:
        return f"has {len(pattern)} characters; {MAX_LENGTH} are allowed"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # what will mean something else one day
            re.compile(pattern)
    except (re.error, RecursionError, OverflowError, Warning) as exc:
        return f"is not a regular expression: {exc}"
    return _dangers(pattern)


def _dangers(pattern: str) -> str:
    """Walk through a pattern that compiles. A frame of the stack: whether a group is risky."""
    if "(?>" in pattern:
        return "uses an atomic group, which older Pythons do not know; write (?:...)"
    stack, closed, at = [False], False, 0
    while at < len(pattern):
        token = _token(pattern, at)
        at += len(token)
        if token in ("*", "+", "?") or (len(token) > 1 and token[0] == "{"):
            if closed and token != "?":
                return "repeats a group that repeats or chooses inside; write it without the outer"
            if at < len(pattern) and pattern[at] == "+":
                return "uses a possessive repeat, which older Pythons do not know; drop the last +"
            stack[-1], closed = True, False
            at += pattern[at : at + 1] == "?"  # a lazy repeat
            continue
        closed = _step(stack, token)
    return ""


def _token(pattern: str, at: int) -> str:
    char = pattern[at]
    if char == "\\":
        return pattern[at : at + 2]
    if pattern.startswith("(?", at):
        return "(?"  # its question mark repeats nothing
    kind = {"[": _CLASS, "{": _COUNT}.get(char)
    match = kind.match(pattern, at) if kind is not None else None
    return match[0] if match is not None else char


def _step(stack: list[bool], token: str) -> bool:
    """Go on by a token that repeats nothing; return whether it closes a risky group."""
    if token in ("(", "(?"):
        stack.append(False)
    elif token == "|":
        stack[-1] = True
    elif token == ")" and len(stack) > 1:
        risky = stack.pop()
        stack[-1] = stack[-1] or risky
        return risky
    return False
