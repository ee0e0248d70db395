"""
The page as Bokeh shows it, one document for each person who looks: sortable tables, brought up to
date every second; only what has changed is sent.
"""

from __future__ import annotations

import logging
from typing import Any

import bokeh.models
from bokeh.layouts import column
from distributed.dashboard.components import add_periodic_callback
from distributed.dashboard.components.scheduler import BOKEH_THEME, env
from distributed.dashboard.utils import _DATATABLE_STYLESHEETS_KWARGS

from dask_adaptive_agent.guard import logged
from dask_adaptive_agent.page.looks import COLOURS, GREY, TABLES, Looks

logger = logging.getLogger(__name__)

EVERY_MS = 1000

#: Made by metaclasses that type checkers can't read.
models: Any = bokeh.models

ROW_PX, MOST_ROWS = 25, 24

#: `<%- %>` escapes. The whole text is in the title: a sentence is longer than its column is wide.
TEXT = '<span title="<%- value %>"><%- value %></span>'
STATE = '<b style="color:<%= (' + repr(COLOURS) + f")[value] || '{GREY}' %>\"><%- value %></b>"


class Table:
    """One table with its title, or a sentence while it has no row."""

    def __init__(self, name: str) -> None:
        self._spec = spec = TABLES[name]
        self._n_changes = 0
        self.source = models.ColumnDataSource(
            {field: [] for field, *_ in spec.columns}, name=f"adaptive-{name}"
        )
        self._title = models.Div(sizing_mode="stretch_width")
        self._table = models.DataTable(
            source=self.source,
            columns=[_column(*column) for column in spec.columns],
            index_position=None,
            row_height=ROW_PX,
            sizing_mode="stretch_width",
            **_DATATABLE_STYLESHEETS_KWARGS,
        )
        self.parts = (self._title, self._table)
        self._say(0)

    def update(self, columns: dict[str, list[Any]]) -> None:
        """Show these rows, in the order in which the viewer has sorted them."""
        old = self.source.data
        fields = [field for field, *_ in self._spec.columns]
        # A copy: Bokeh patches a source's lists in place, and others are shown the same ones.
        new = {field: list(columns[field]) for field in fields}
        n_rows, n_before = len(new[fields[0]]), len(old[fields[0]])
        changed = [field for field in fields if list(old[field]) != new[field]]
        if n_rows != n_before:
            self.source.data = new
            self._say(n_rows)
        elif changed:
            self.source.patch({field: [(slice(0, n_rows), new[field])] for field in changed})
        if changed:
            # Bokeh 3.9.1 and 3.9.2 redraw a table only when its view changes, and one whose
            # rows are as many as before has not changed (bokeh/bokeh#15328). A tag is a change.
            self._n_changes += 1
            self._table.view.tags = [self._n_changes]

    def _say(self, n_rows: int) -> None:
        title = f'<b style="font-size:1.1em">{self._spec.title}</b>'
        self._title.text = f"{title} ({n_rows})" if n_rows else f"{title}: {self._spec.empty}"
        self._table.visible = n_rows > 0
        self._table.height = ROW_PX * (1 + min(n_rows, MOST_ROWS)) + 10


def _column(field: str, title: str, width: int, kind: str) -> Any:
    template = {"text": TEXT, "state": STATE}.get(kind)
    if template is not None:
        formatter = models.HTMLTemplateFormatter(template=template)
    else:
        formatter = models.NumberFormatter(format={"number": "0,0", "bytes": "0.0 b"}[kind])
    return models.TableColumn(field=field, title=title, width=width, formatter=formatter)


def show(looks: Looks, scheduler: Any, extra: dict[str, Any], doc: Any) -> None:
    """Fill a document, as upstream's own pages do. Never raises."""
    with logged(logger, "Failed to show the page in the dashboard"):
        view = View(looks)
        doc.title = "Dask: Adaptive"
        doc.add_root(view.root)
        doc.template = env.get_template("simple.html")
        doc.template_variables.update(extra)
        doc.theme = BOKEH_THEME
        add: Any = add_periodic_callback
        add(doc, view, EVERY_MS)


class View:
    """The document of one person who looks."""

    def __init__(self, looks: Looks) -> None:
        self._looks = looks
        self.head = models.Div(sizing_mode="stretch_width")
        self.tables = {name: Table(name) for name in TABLES}
        parts = [part for table in self.tables.values() for part in table.parts]
        self.root = column(self.head, *parts, sizing_mode="stretch_width")
        self.update()

    def update(self) -> None:
        """Called every second while somebody looks. Never raises: Bokeh would log it each time."""
        self._looks.parts.guard.section("the page in the dashboard", self._update, None)

    def _update(self) -> None:
        look = self._looks.take()
        self.head.text = look.summary
        for name, table in self.tables.items():
            table.update(look.tables[name])
