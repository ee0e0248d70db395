"""
Puts the page into a dashboard that runs, and takes it out again.

The dashboard is a Bokeh application among the scheduler's HTTP applications; ours is another one
next to it, so nothing of upstream's is changed but the list of pages in its navigation bar.
"""

from __future__ import annotations

import functools
import logging
import sys
from dataclasses import dataclass, field
from typing import Any

from dask_adaptive_agent.guard import logged
from dask_adaptive_agent.page.looks import Looks

logger = logging.getLogger(__name__)

#: Path of the page, and its entry in the navigation bar: `base.html` shows it as a title.
NAME = "adaptive"

#: Where upstream's own pages are made; not imported where there is no dashboard.
DASHBOARD = "distributed.dashboard.scheduler"

#: The page by which upstream's dashboard is told from other applications.
STOCK_PAGE = "/status"


@dataclass(eq=False)
class DashboardPage:
    """One scheduler's page. Its errors are logged and do not affect the scheduler."""

    scheduler: Any
    looks: Looks
    _app: Any = None
    _pages: list[str] = field(default_factory=list)

    def install(self) -> None:
        """Serve the page, where there is a dashboard. Never raises."""
        try:
            stock = self._dashboard()
            if stock is not None:
                self._serve(stock)
        except Exception:
            # Fail open: people lose a page, not their scheduler.
            logger.exception("The dashboard goes on without a page of dask-adaptive")
            self.uninstall()

    def uninstall(self) -> None:
        """Remove the page, also for those who have it open. Never raises."""
        app, self._app = self._app, None
        with logged(logger, "Failed to take the page out of the dashboard"):
            if NAME in self._pages:
                self._pages.remove(NAME)
            if app is not None:
                self._others().remove(app)
                try:
                    # Since Bokeh 3.10 `stop` refuses to wait on the loop that runs this.
                    app.stop(wait=False)
                finally:
                    for session in app.get_sessions(f"/{NAME}"):
                        session.destroy()

    def _dashboard(self) -> Any:
        """Upstream's application; None: there is no dashboard, or not one that we know."""
        if DASHBOARD not in sys.modules:
            return None  # no bokeh, one that is too old, or nobody has asked for a dashboard
        dashboards = (app for app in self._others() if STOCK_PAGE in getattr(app, "app_paths", ()))
        return next(dashboards, None)

    def _others(self) -> list[Any]:
        # RoutingApplication.find_handler asks these in turn until one knows the path.
        application: Any = getattr(self.scheduler, "http_application", None)
        return getattr(application, "applications", [])

    def _serve(self, stock: Any) -> None:
        from distributed.dashboard.core import BokehApplication
        from tornado.ioloop import IOLoop

        from dask_adaptive_agent.page.document import show

        variables = sys.modules[DASHBOARD].template_variables(self.scheduler)
        make: Any = BokehApplication
        self._app = app = make(
            {f"/{NAME}": functools.partial(show, self.looks)},
            self.scheduler,
            prefix=stock.prefix,
            template_variables=variables,
        )
        app.initialize(IOLoop.current())
        app.start()
        # Right behind upstream's: what comes after may claim all paths that are left (Jupyter).
        others = self._others()
        others.insert(others.index(stock) + 1, app)
        # Upstream keeps one list for each scheduler, which all of its pages share. Ours comes
        # behind what people look at most, before Info, which leads out of the dashboard.
        self._pages = pages = variables["pages"]
        if NAME not in pages:
            pages.insert(pages.index("info") if "info" in pages else len(pages), NAME)
