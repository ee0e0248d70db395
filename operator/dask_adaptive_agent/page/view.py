"""One person's look at the page: a Bokeh document that is brought up to date every second."""

from __future__ import annotations

import logging
from typing import Any

from bokeh.layouts import column
from distributed.dashboard.components import add_periodic_callback
from distributed.dashboard.components.scheduler import BOKEH_THEME, env

from dask_adaptive_agent.page.look import Looks
from dask_adaptive_agent.page.table import AHEAD, DECISIONS, PINS, WORKERS, Table, models

logger = logging.getLogger(__name__)

EVERY_MS = 1000


def show(looks: Looks, scheduler: Any, extra: dict[str, Any], doc: Any) -> None:
    """Fill a document, as upstream's own pages do. Never raises."""
    try:
        view = View(looks)
        doc.title = "Dask: Adaptive"
        doc.add_root(view.root)
        doc.template = env.get_template("simple.html")
        doc.template_variables.update(extra)
        doc.theme = BOKEH_THEME
        add: Any = add_periodic_callback
        add(doc, view, EVERY_MS)
    except Exception:
        logger.exception("Cannot show the page in the dashboard")


class View:
    """What one person sees."""

    def __init__(self, looks: Looks) -> None:
        self._looks = looks
        self._has_failed = False
        self.head = models.Div(text="", sizing_mode="stretch_width")
        self.workers = Table(WORKERS)
        self.decisions = Table(DECISIONS)
        self.pins = Table(PINS)
        self.ahead = Table(AHEAD)
        tables = (self.workers, self.decisions, self.pins, self.ahead)
        self.root = column(
            self.head, *[part for table in tables for part in table.parts],
            sizing_mode="stretch_width",
        )  # fmt: skip
        self.update()

    def update(self) -> None:
        """Called every second while somebody looks. Never raises: Bokeh would log it each time."""
        try:
            look = self._looks.take()
            self.head.text = look.summary
            self.workers.update(look.workers)
            self.decisions.update(look.decisions)
            self.pins.update(look.pins)
            self.ahead.update(look.ahead)
        except Exception:
            if not self._has_failed:
                self._has_failed = True
                logger.exception("Cannot bring the page in the dashboard up to date")
