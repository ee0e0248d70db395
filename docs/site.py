"""
What mkdocs needs to know beyond mkdocs.yml: the files outside docs/ that pages link to.

Pages are written such that their links lead somewhere in the repository. In the site such files are
served as they are, below `source/`.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]

#: `[text](target)` whose target is not a page or an address.
_LINK = re.compile(r"(\[[^\]]*\]\()((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")


#: What a browser fetches by itself; links that a reader clicks may lead out.
_FETCHED = re.compile(r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//[^>]*>""")


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Refuse pages that fetch something from elsewhere: people read them in closed networks."""
    if found := _FETCHED.search(output):
        raise SystemExit(f"{page.file.src_uri} fetches from the network: {found[0]}")
    return output


def on_files(files: Files, *, config: Any) -> Files:
    """Add all files outside docs/ that a page links to."""
    for page in list(files.documentation_pages()):
        text = Path(page.abs_src_path or "").read_text()
        for _, target, _ in _LINK.findall(text):
            path = _outside(page.src_uri, target)
            if path and files.get_file_from_path(_served(path)) is None:
                if not (ROOT / path).is_file():
                    raise SystemExit(f"{page.src_uri}: {target} leads nowhere")
                content = (ROOT / path).read_text()
                files.append(File.generated(config, _served(path), content=content))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Turn links to them round."""

    def turned(found: re.Match[str]) -> str:
        path = _outside(page.file.src_uri, found[2])
        if not path:
            return found[0]
        here = posixpath.dirname(page.file.src_uri) or "."
        return f"{found[1]}{posixpath.relpath(_served(path), here)})"

    return _LINK.sub(turned, markdown)


def _outside(page: str, target: str) -> str:
    """The path from the repository's root, if the target is not in docs/; else empty."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    return "" if path.startswith("docs/") else path


def _served(path: str) -> str:
    # Markdown would be taken for a page of the site, templates and code for something to run.
    return f"source/{path}.txt"
