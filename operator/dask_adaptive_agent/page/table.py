"""The tables of the page as Bokeh shows them: sortable, and only what has changed is sent."""

from __future__ import annotations

from typing import Any, NamedTuple

import bokeh.models
from distributed.dashboard.utils import _DATATABLE_STYLESHEETS_KWARGS

from dask_adaptive_agent.page.summary import COLOURS, GREY

#: Made by metaclasses that type checkers can't read.
models: Any = bokeh.models

ROW_PX, MOST_ROWS = 25, 24

#: `<%- %>` escapes. The whole text is in the title: a sentence is longer than its column is wide.
TEXT = '<span title="<%- value %>"><%- value %></span>'
STATE = '<b style="color:<%= (' + repr(COLOURS) + f")[value] || '{GREY}' %>\"><%- value %></b>"


class Spec(NamedTuple):
    """A table: what it is called, what stands there while it is empty, and its columns."""

    name: str
    title: str
    empty: str
    columns: tuple[tuple[str, str, int, str], ...]  # (field, title, width, kind)


WORKERS = Spec(
    "workers",
    "Workers",
    "No worker is connected.",
    (
        ("name", "Worker", 190, "text"),
        ("state", "State", 70, "state"),
        ("tasks", "Tasks", 60, "number"),
        ("idle", "Idle (s)", 70, "number"),
        ("memory", "Memory", 80, "bytes"),
        ("runs", "Runs", 60, "number"),
        ("quota", "Quota", 190, "text"),
        ("why", "Why it stays or leaves", 600, "text"),
    ),
)
DECISIONS = Spec(
    "decisions",
    "Last decisions",
    "None has been told of yet.",
    (
        ("at", "At (UTC)", 130, "text"),
        ("group", "Worker group", 150, "text"),
        ("reason", "Reason", 160, "text"),
        ("message", "Decision", 700, "text"),
    ),
)
PINS = Spec(
    "pins",
    "Pins",
    "Nobody holds a worker.",
    (
        ("source", "Source", 70, "text"),
        ("owner", "Owner", 220, "text"),
        ("left", "Time left", 70, "text"),
        ("reason", "For", 250, "text"),
        ("workers", "Workers", 500, "text"),
    ),
)
AHEAD = Spec(
    "ahead",
    "Shuffles, and workers asked for",
    "No shuffle runs or is about to begin, and nobody asks for workers.",
    (
        ("what", "What", 160, "text"),
        ("who", "Who", 300, "text"),
        ("message", "How it stands", 650, "text"),
    ),
)


class Table:
    """One table with its title, or a sentence while it has no row."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._n_changes = 0
        self.source = models.ColumnDataSource(
            {field: [] for field, *_ in spec.columns}, name=f"adaptive-{spec.name}"
        )
        self._title = models.Div(text="", sizing_mode="stretch_width")
        self._table = models.DataTable(
            source=self.source,
            columns=[_column(*column) for column in spec.columns],
            index_position=None,
            sortable=True,
            reorderable=True,
            selectable=True,
            row_height=ROW_PX,
            height=2 * ROW_PX,
            visible=False,
            sizing_mode="stretch_width",
            **_DATATABLE_STYLESHEETS_KWARGS,
        )
        self._say(0)

    @property
    def parts(self) -> tuple[Any, Any]:
        return (self._title, self._table)

    def update(self, columns: dict[str, list[Any]]) -> None:
        """Show these rows; what those who look have sorted stays sorted."""
        old = self.source.data
        fields = [field for field, *_ in self._spec.columns]
        # A copy: Bokeh patches a source's lists in place, and others are shown the same ones.
        new = {field: list(columns.get(field, ())) for field in fields}
        n_rows, n_before = len(new[fields[0]]), len(old[fields[0]])
        changed = [field for field in fields if list(old[field]) != new[field]]
        if n_rows != n_before:
            self.source.data = new
            self._say(n_rows)
        elif changed:
            self.source.patch({field: [(slice(0, n_rows), new[field])] for field in changed})
        if changed:
            # Bokeh 3.9.1 and 3.9.2 draw a table anew only when its view changes, and one whose
            # rows are as many as before has not changed (bokeh/bokeh#15328). A tag is a change.
            self._n_changes += 1
            self._table.view.tags = [self._n_changes]

    def _say(self, n_rows: int) -> None:
        title = f'<b style="font-size:1.1em">{self._spec.title}</b>'
        self._title.text = f"{title} ({n_rows})" if n_rows else f"{title}: {self._spec.empty}"
        self._table.visible = n_rows > 0
        self._table.height = ROW_PX * (1 + min(n_rows, MOST_ROWS)) + 10


def _column(field: str, title: str, width: int, kind: str) -> Any:
    formatters = {
        "text": lambda: models.HTMLTemplateFormatter(template=TEXT),
        "state": lambda: models.HTMLTemplateFormatter(template=STATE),
        "number": lambda: models.NumberFormatter(format="0,0"),
        "bytes": lambda: models.NumberFormatter(format="0.0 b"),
    }
    return models.TableColumn(field=field, title=title, width=width, formatter=formatters[kind]())
