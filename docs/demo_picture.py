"""
Draw docs/images/demo.svg: the demo's terminal at its busiest moment, and the figures at its end.

    .venv/bin/python docs/demo_picture.py
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.segment import Segment, Segments

from dask_adaptive.loop.one_pass import PassResult
from dask_adaptive.loop.ports import Event
from dask_adaptive.loop.summary import worker_state
from dask_adaptive.planner.leave import claims
from dask_adaptive_lab.cli.files import read_policy
from dask_adaptive_lab.local import Machine
from dask_adaptive_lab.rehearse.rehearsal import rehearse
from dask_adaptive_lab.rehearse.views import Page, RehearsalFigures, Watcher
from dask_adaptive_lab.tally import Tally

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs/images/demo.svg"
POLICY = ROOT / "manifests/examples/policy.yaml"

#: Fewer columns break every sentence; with more, the text is too small on a telephone.
COLUMNS = 72


class Picture(Watcher):
    """Follows a rehearsal with a page of its own, and keeps the one that shows most."""

    def __init__(self) -> None:
        self._page, self._most = Page(f"rehearsal of {POLICY.name}"), (0, 0)
        self._segments: list[Segment] = []
        self._console = Console(
            width=COLUMNS, file=io.StringIO(), record=True, force_terminal=True,
            color_system="truecolor", legacy_windows=False, _environ={},
        )  # fmt: skip

    def said(self, line: str) -> None:
        self._page.said(line)

    def happened(self, event: Event) -> None:
        self._page.happened(event)

    def counted(self, tally: Tally) -> None:
        self._page.counted(tally)

    def saw(self, result: PassResult) -> None:
        """Keep the page where workers differ most in what they do; of several, the fullest."""
        self._page.saw(result)
        workers = [worker for group in result.observed.groups for worker in group.workers]
        kinds = {(worker_state(w), w.process.processing > 0, bool(claims(w))) for w in workers}
        if (len(kinds), len(workers)) >= self._most:
            self._most = len(kinds), len(workers)
            lines = self._console.render_lines(self._page)
            self._segments = [s for line in lines for s in (*line, Segment.line())]

    def svg(self, figures: RehearsalFigures) -> str:
        self._console.print(Segments(self._segments), figures.table(), sep="\n", end="")
        title = f"dask-adaptive rehearse {POLICY.name}"
        svg = self._console.export_svg(title=title, unique_id="rehearsal")
        # The picture fetches no font from the network: the reader's own fixed-width font will do.
        return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def main() -> int:
    picture = Picture()
    with tempfile.TemporaryDirectory() as directory:
        code, figures = rehearse(
            read_policy(POLICY), [], Path(directory), Machine(), name=POLICY.name,
            watchers=[picture],
        )  # fmt: skip
    PICTURE.write_text(picture.svg(figures))
    return code


if __name__ == "__main__":
    sys.exit(main())
