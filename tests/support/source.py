"""The code of a module, without what is said about it."""

from __future__ import annotations

import ast
import tokenize

NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}  # fmt: skip
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code(text: str) -> list[str]:
    """The lines that hold code: no blanks, comments or docstrings, whatever Python reads them."""
    lines, rows = text.splitlines(), set[int]()
    for token in tokenize.generate_tokens(iter(text.splitlines(keepends=True)).__next__):
        if token.type == tokenize.COMMENT:
            lines[token.start[0] - 1] = lines[token.start[0] - 1][: token.start[1]]
        elif token.type not in NO_CODE:
            rows.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            rows -= set(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return [lines[row - 1].rstrip() for row in sorted(rows)]
