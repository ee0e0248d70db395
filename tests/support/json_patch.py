"""JSON patches, applied as the API server does; nothing may be overwritten by an `add`."""

from __future__ import annotations

import copy
from typing import Any


def apply(body: dict[str, Any], patch: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """RFC 6902, as far as we use it."""
    result = copy.deepcopy(body)
    for op in patch:
        *parents, last = [
            p.replace("~1", "/").replace("~0", "~") for p in op["path"].split("/")[1:]
        ]
        node: Any = result
        for part in parents:
            node = node[int(part)] if isinstance(node, list) else node[part]
        if isinstance(node, list) and last == "-":
            node.append(op["value"])
        elif isinstance(node, list):
            node[int(last)] = op["value"]
        else:
            assert op["op"] == "replace" or last not in node, f"{op} overwrites"
            node[last] = op["value"]
    return result
