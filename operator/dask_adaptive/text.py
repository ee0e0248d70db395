"""
Cleans text of schedulers and objects before people see it: control characters can change a
terminal's title, clipboard, screen, and direction of writing.
"""

from __future__ import annotations

#: C0, DEL and C1; separators of lines, what overrides or isolates the direction of text, and halves
#: of characters, which can't be written at all.
_RANGES = ((0, 0x20), (0x7F, 0xA0), (0x2028, 0x202F), (0x2066, 0x206A), (0xD800, 0xE000))
_CONTROLS = [code for first, end in _RANGES for code in range(first, end)]

_DROPPED = dict.fromkeys(set(_CONTROLS) - {ord("\n"), ord("\t")})
_ESCAPED = {code: f"\\u{code:04x}" for code in _CONTROLS} | {ord("\n"): "\\n", ord("\t"): "\\t"}


def plain(text: str) -> str:
    """Drop control characters except newlines and tabs."""
    return text.translate(_DROPPED)


def one_line(text: str) -> str:
    """Write control characters as escapes, newlines too, so that text cannot forge a line."""
    return text.translate(_ESCAPED)
