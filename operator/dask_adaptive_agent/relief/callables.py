"""What a task calls, in whatever shape this release keeps tasks: objects, or tuples before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distributed import worker

try:
    from dask import _task_spec
except ImportError:
    _task_spec = None  # type: ignore[assignment]

#: None before distributed 2024.11.0, the first to send objects. dask 2024.9.0 has the module
#: already, but its tasks know nothing of `_data_producer`, and never get into a scheduler.
TASK: Any = None if hasattr(worker, "execute_task") else getattr(_task_spec, "Task", None)
SPEC: Any = TASK or tuple
#: Parts of a nest that are looked at: who has more data than tasks would wait for nothing.
MOST_LOOKED_AT = 200
#: What only names other tasks.
REFERENCES: tuple[Any, ...] = tuple(
    getattr(_task_spec, name) for name in ("Alias", "TaskRef") if hasattr(_task_spec, name)
)
#: These only call what is in their arguments.
_NESTS = tuple(
    filter(
        None,
        (getattr(_task_spec, "_execute_subgraph", None), getattr(worker, "execute_task", None)),
    )
)


def is_spec(x: Any) -> bool:
    """Whether it is a task as a scheduler sends it: `distributed.worker._normalize_task` before."""
    if TASK is not None:
        return type(x) is TASK
    return type(x) is SPEC and len(x) == 3 and callable(x[0]) and type(x[2]) is dict


def callable_of(spec: Any) -> Any:
    """What is called first of all."""
    return spec[0] if type(spec) is tuple else spec.func


def is_nest(fn: object) -> bool:
    """Whether it only calls what is in its arguments: fused tasks, and nested ones."""
    return any(fn is nest for nest in _NESTS)


def nested_in(spec: Any) -> tuple[object, ...]:
    """What a nest calls, each once, in a stable order; empty if that takes long to find out."""
    found: dict[int, object] = {}
    todo: list[Any] = list(spec[1]) if type(spec) is tuple else [spec]
    for _ in range(MOST_LOOKED_AT):
        if not todo:
            return tuple(found.values())
        fn, inside = _opened(todo.pop())
        if fn is not None:
            found[id(fn)] = fn
        if len(inside) > MOST_LOOKED_AT:
            break
        todo.extend(inside)
    return ()


def _opened(spec: Any) -> tuple[Any, Sequence[Any]]:
    """What it calls, if it is a task, and in what there may be more tasks."""
    if isinstance(spec, (tuple, list)):
        is_task = type(spec) is tuple and spec and callable(spec[0])
        return (spec[0], spec[1:]) if is_task else (None, spec)
    if TASK is None or not isinstance(spec, TASK):
        return None, ()
    return (None, list(spec.args[0].values())) if is_nest(spec.func) else (spec.func, ())
