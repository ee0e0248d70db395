"""Read what an agent says of its reliefs, of Dask's configuration, and of serializing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask_adaptive.model.observed import (
    ConfigProblem,
    ReliefState,
    Serialized,
    SerializedFunction,
)

#: As the wire promises; a newer agent may send more.
MAX_TOP = 10


def read_reliefs(answer: Mapping[str, Any]) -> tuple[ReliefState, ...]:
    """The reliefs of a snapshot; none of an agent that knows no reliefs."""
    return tuple(
        ReliefState(row["name"], row["state"], row["message"], tuple(sorted(row["counts"].items())))
        for row in answer.get("relief", ())
    )


def read_config(answer: Mapping[str, Any]) -> tuple[ConfigProblem, ...] | None:
    """What is wrong with the configuration that people want; None: an older agent can't tell."""
    if "config" not in answer:
        return None
    return tuple(
        ConfigProblem(row["key"], row["state"], row["message"]) for row in answer["config"]
    )


def read_serialized(answer: Mapping[str, Any]) -> Serialized | None:
    row = answer.get("serialized")
    if row is None:
        return None
    return Serialized(
        calls=row["calls"],
        seconds=row["us"] / 1e6,
        sent_bytes=row["bytes"],
        share=row["share"] / 100,
        top=tuple(
            SerializedFunction(f["function"], f["calls"], f["us"] / 1e6, f["bytes"], f["size"])
            for f in row["top"][:MAX_TOP]
        ),
    )
