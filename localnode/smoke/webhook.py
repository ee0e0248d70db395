"""Admission over TLS: /mutate adds a label, /validate refuses objects named "refused"."""

import base64
import http.server
import json
import ssl


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers one AdmissionReview."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
        response = {"uid": request["uid"], "allowed": True}
        if self.path.startswith("/validate") and request["name"] == "refused":
            response |= {"allowed": False, "status": {"message": "smoke says no"}}
        elif self.path.startswith("/mutate"):
            patch = [{"op": "add", "path": "/metadata/labels", "value": {"smoke": "mutated"}}]
            encoded = base64.b64encode(json.dumps(patch).encode()).decode()
            response |= {"patchType": "JSONPatch", "patch": encoded}
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
        body = json.dumps(review | {"response": response}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/tls/tls.crt", "/tls/tls.key")
server = http.server.ThreadingHTTPServer(("", 8443), Handler)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
