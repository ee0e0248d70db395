"""
Somebody who has the dashboard's page of progress open.

    python viewer.py URL

Pulls the page's document over its websocket, and stays. Answers each line of standard input with
how many of the document's changes have come.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from bokeh.client import pull_session


def main() -> None:
    session = pull_session(url=sys.argv[1])
    changes: list[Any] = []
    session.document.on_change(changes.append)
    print(json.dumps({"ready": [type(root).__name__ for root in session.document.roots]}))
    sys.stdout.flush()
    lines = threading.Thread(target=answer, args=(changes,), daemon=True)
    lines.start()
    while lines.is_alive():
        session.force_roundtrip()
        time.sleep(0.2)


def answer(changes: list[Any]) -> None:
    for _ in sys.stdin:
        print(json.dumps({"changes": len(changes)}), flush=True)


if __name__ == "__main__":
    main()
