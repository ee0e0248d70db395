"""
How Sphinx builds the site: `make docs`. The navigation is in `_toc.yml`.

The site works from a folder, without a server or network. Two variables add what only a published
site has: `DOCS_URL`, the address above the folders of all versions, gives the version menu (it
reads `versions.json` there) and excerpts in the results of the search; `PROJECT_URL` gives each
page a link to edit it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
VERSION = (ROOT / "operator/dask_adaptive_agent/__init__.py").read_text()
DOCS_URL, PROJECT_URL = os.environ.get("DOCS_URL"), os.environ.get("PROJECT_URL")

project = "dask-adaptive"
author = "the dask-adaptive developers"
copyright = author
release = version = re.findall(r'(?m)^__version__ = "(.*)"', VERSION)[0]

extensions = ["myst_parser", "sphinx_copybutton", "sphinx_design", "sphinx_external_toc"]
external_toc_path = "_toc.yml"
nitpicky = True
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
# Pygments knows less of PromQL than Prometheus.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "pydata_sphinx_theme"
html_title = f"dask-adaptive {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["tables.js"]
html_copy_source = html_show_sourcelink = False
html_show_search_summary = bool(DOCS_URL)  # browsers fetch no page for another one in a folder
html_theme_options: dict[str, Any] = {
    "navbar_align": "left",
    "header_links_before_dropdown": 8,
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_context = {"default_mode": "auto"}
if DOCS_URL:
    html_theme_options |= {
        "switcher": {"json_url": f"{DOCS_URL}/versions.json", "version_match": release},
        "check_switcher": False,
        "navbar_start": ["navbar-logo", "version-switcher"],
    }
if PROJECT_URL:
    html_theme_options["use_edit_page_button"] = True
    html_context |= {
        "edit_page_url_template": PROJECT_URL + "/edit/main/docs/{{ file_name }}",
        "edit_page_provider_name": "",
    }

# `copy` takes what follows a prompt, and no output.
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
copybutton_line_continuation_character = "\\"

#: `[text](path#fragment)`.
LINK = re.compile(r"\[([^\]]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")
#: Files of the repository that are pages of the site.
INCLUDED = {
    ROOT / "CHANGELOG.md": "changelog.md",
    ROOT / "CONTRIBUTING.md": "contributing/index.md",
    ROOT / "README.md": "index.md",
    ROOT / "SCOPE.md": "contributing/scope.md",
    ROOT / "helm/dask-adaptive-operator/README.md": "reference/chart.md",
}
#: What a browser fetches by itself; links that a reader clicks may lead out.
FETCHED = re.compile(r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//[^>]*>""")


def with_links(text: str, base: Path, page: Path) -> str:
    """A text whose links start from `base`, for a page: to another page, or to a file as it is."""

    def turned(found: re.Match[str]) -> str:
        said, path, fragment = found.groups("")
        target = (base / path).resolve()
        target = ROOT / "docs" / INCLUDED.get(target, target)
        link = os.path.relpath(target, page.parent)
        if target.suffix != ".md" or (ROOT / "docs") in target.parents:
            return f"[{said}]({link}{fragment})"
        return f"{{download}}`{said.replace('`', '')} <{link}>`"

    return LINK.sub(turned, text)


def read_page(app: Any, docname: str, source: list[str]) -> None:
    page = ROOT / "docs" / docname
    source[0] = with_links(source[0], page.parent, page)


def read_included(app: Any, path: Path, _: str, source: list[str]) -> None:
    page = ROOT / "docs" / app.env.docname  # MyST passes the name without its folder
    source[0] = with_links(source[0], (ROOT / "docs" / path).resolve().parent, page)


def refuse_network(app: Any, error: Exception | None) -> None:
    """Refuse pages that fetch something from elsewhere: people read them in closed networks."""
    for page in [] if error or DOCS_URL else Path(app.outdir).rglob("*.html"):
        if found := FETCHED.search(page.read_text()):
            raise SystemExit(f"{page} fetches from the network: {found[0]}")


def setup(app: Any) -> None:
    app.connect("source-read", read_page)
    app.connect("include-read", read_included)
    app.connect("build-finished", refuse_network)
