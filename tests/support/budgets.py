"""Specs of AdaptiveBudgets that the model and the API server refuse alike."""

from __future__ import annotations

from typing import Any

#: (spec, field, a part of what is said of it).
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({}, "limits", "is required"),
    ({"limits": {}}, "limits", "must name at least one of workers"),
    ({"limits": {"cpu": "many"}}, "limits", ""),
    ({"limits": {"cpu": -1}}, "limits", ""),
    ({"limits": {"workers": 1}, "namespaces": []}, "namespaces", "must name one"),
    ({"limits": {"workers": 1}, "shares": [{"weight": 2}]}, "shares[0].namespace", "is required"),
    ({"limits": {"workers": 1}, "shares": [{"namespace": "a", "weight": 0}]},
     "shares[0].weight", "0.001 to"),
    ({"limits": {"workers": 1}, "shares": [{"namespace": "a", "weight": 1e-9}]},
     "shares[0].weight", "0.001 to"),
    ({"limits": {"workers": 1}, "shares": [{"namespace": "a", "guarantee": -1}]},
     "shares[0].guarantee", ""),
    ({"limits": {"workers": 1}, "reclaim": {"after": "soon"}}, "reclaim.after", "a duration"),
    ({"limits": {"workers": 1}, "namespaceSelector": {"matchLabels": {"a": 1}}},
     "namespaceSelector.matchLabels", "must be labels"),
    ({"limits": {"workers": 1}, "controllerName": "A"}, "controllerName", "a name of Kubernetes"),
    ({"limits": {"workers": 1}, "limit": 3}, "limit", "is not a known field"),
]  # fmt: skip
