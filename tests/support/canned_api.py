"""An API server that answers with what a test has given it, for commands that read."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from dask_adaptive.kube import api

Json = dict[str, Any]

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: k, user: u, namespace: team}}}}]
clusters: [{{name: k, cluster: {{server: "{server}"}}}}]
users: [{{name: u, user: {{}}}}]
"""

_KINDS = {r.kind: r for r in vars(api).values() if isinstance(r, api.Resource)}


class CannedApi:
    """Objects by path. It filters by no label, and by `involvedObject.name` alone."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(api.find(*_split(self.path)))

            def _answer(self, found: Json | None) -> None:
                text = json.dumps(found or {"message": f"no {self.path}"}).encode()
                self.send_response(200 if found else 404)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def add(self, *bodies: Json) -> None:
        for body in bodies:
            meta = body["metadata"]
            self.objects[_KINDS[body["kind"]].path(meta.get("namespace"), meta["name"])] = body

    def find(self, path: str, query: Json) -> Json | None:
        """The object, or the list of a collection."""
        if path in self.objects:
            return self.objects[path]
        root, _, plural = path.rpartition("/")
        if plural not in {kind.plural for kind in _KINDS.values()}:
            return None
        field, _, about = query.get("fieldSelector", "").partition("=")
        items = [
            body
            for key, body in self.objects.items()
            if key.startswith(f"{root}/")
            and key.split("/")[-2] == plural
            and (not about or _at(body, field) == about)
        ]
        return {"items": items, "metadata": {"resourceVersion": "1"}}

    def kubeconfig(self, folder: Path) -> str:
        path = folder / "kubeconfig"
        path.write_text(KUBECONFIG.format(server=f"http://127.0.0.1:{self._server.server_port}"))
        return str(path)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _at(body: Json, path: str) -> Any:
    for name in path.split("."):
        body = body[name]
    return body


def _split(url: str) -> tuple[str, Json]:
    parts = urlsplit(url)
    return parts.path, dict(parse_qsl(parts.query))
