#!/usr/bin/env python3
"""
Write the pages of the reference that follow from the code.

    docs/generate.py           writes {reference/{policy,reasons},contributing/{patches,wire}}.md
    docs/generate.py --check   exit code 1 if a page is out of date

Needs PyYAML, which the operator needs too.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
CRD = ROOT / "helm/dask-adaptive-operator/files/crds/adaptivepolicies.yaml"
REASON = ROOT / "operator/dask_adaptive/model/reason.py"
WIRE = ROOT / "operator/dask_adaptive_agent/wire.py"
PATCHING = ROOT / "operator/dask_adaptive_agent/patching.py"

#: A sentence for each Reason.
SENTENCES = ROOT / "docs/reasons.yaml"

#: What worker groups have instead of `spec.recycle`.
GROUPS = "spec.workerGroups[].recycle"

MADE = "<!-- Made by docs/generate.py from {source}. Edit there, then run docs/generate.py. -->\n"


DURATIONS = """
## Durations

A duration is a number with a unit (`ms`, `s`, `m` or `h`), or several in a row: `500ms`, `90s`,
`1h30m`. It is at most `87600h`. HPA has whole seconds instead: its `periodSeconds: 60` is
`period: 60s` here, and its `stabilizationWindowSeconds: 300` is `stabilizationWindow: 5m`."""


def policy_page() -> str:
    """Fields, status and columns, from the CRD."""
    version = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]
    top = version["schema"]["openAPIV3Schema"]["properties"]
    spec, status = top["spec"], top["status"]
    lines = [
        MADE.format(source=CRD.relative_to(ROOT)),
        "# AdaptivePolicy\n",
        f"`dask-adaptive.dev/{version['name']}`, namespaced, short name `dap`. A DaskCluster",
        "has at most one. `kubectl` refuses fields that are not listed here. The API server",
        "refuses values that do not fit together, and says why; so does",
        "[`kubectl dask-adaptive validate FILE`](cli.md#validate), without a cluster.",
        "",
        "Editors and kubeconform can check files with a",
        "[JSON schema](../../manifests/schemas/adaptivepolicy_v1alpha1.json), which each release",
        "includes. For editors with yaml-language-server (VS Code's YAML extension),",
        "name it in the first line of the file; kubeconform takes it as an option:",
        "",
        "    # yaml-language-server: $schema=PATH-OR-URL/adaptivepolicy_v1alpha1.json",
        "",
        "    kubeconform -strict -schema-location \\",
        "      'manifests/schemas/{{.ResourceKind}}_{{.ResourceAPIVersion}}.json' policy.yaml",
        "",
        "[The full example](../../manifests/examples/full-policy.yaml) has every field,",
        "[the minimal one](../../manifests/examples/minimal-policy.yaml) the two required ones.",
        DURATIONS,
        *blocks(spec, "spec"),
        "\n## status\n",
        status["description"] + " No number in it changes merely because time passes.\n",
        "| field | type | meaning |",
        "|---|---|---|",
        *(
            f"| `{path}` | {kind(schema)} | {cell(schema.get('description', ''))} |"
            for path, schema, _ in fields(status, "status")
        ),
        "\n## Columns of `kubectl get dap`\n",
        "Columns marked *wide* need `-o wide`.\n",
        "| column | from | meaning |",
        "|---|---|---|",
        *(
            f"| {c['name']}{' *wide*' if c.get('priority') else ''} | `{c['jsonPath']}` |"
            f" {cell(c.get('description', ''))} |"
            for c in version["additionalPrinterColumns"]
        ),
    ]
    return "\n".join(lines) + "\n"


def blocks(schema: dict[str, Any], path: str) -> Iterator[str]:
    """A heading, a text and a table for each object of the spec; a list has its text above."""
    yield f"\n{'##' if path.count('.') < 2 else '###'} {path}"
    if text := cell(schema.get("description", "")):
        yield f"\n{text}"
    if path == GROUPS:
        yield "\nSee [spec.recycle](#specrecycle)."
        return
    required = schema.get("required", [])
    children = schema.get("properties", {}).items()
    if rows := [row(name, child, name in required) for name, child in children if is_leaf(child)]:
        yield from ("\n| field | type | default | meaning |", "|---|---|---|---|", *rows)
    for name, child in children:
        if not is_leaf(child):
            yield from blocks(child, f"{path}.{name}")
        elif "properties" in child.get("items", {}):
            yield from blocks(child["items"], f"{path}.{name}[]")


def fields(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Every field below a schema: its path, its schema, and whether it is required."""
    for name, child in schema.get("properties", {}).items():
        at = f"{path}.{name}"
        yield at, child, name in schema.get("required", [])
        if at == GROUPS or is_open(child):
            continue  # the same fields once more; or whatever people write
        yield from fields(child, at)
        yield from fields(child.get("items", {}), f"{at}[]")


def is_open(schema: dict[str, Any]) -> bool:
    """Whether anything may be in it; what the schema names there is only for its rules."""
    return bool(schema.get("x-kubernetes-preserve-unknown-fields"))


def is_leaf(schema: dict[str, Any]) -> bool:
    return is_open(schema) or "properties" not in schema


def row(name: str, schema: dict[str, Any], required: bool) -> str:
    default = schema.get("default")
    shown = "required" if required else f"`{yaml_word(default)}`" if default is not None else ""
    text = re.sub(r" (Default [^.]*|Required)\.$", "", cell(schema.get("description", "")))
    return f"| `{name}` | {kind(schema)} | {shown} | {text} |"


def kind(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " \\| ".join(f"`{word}`" for word in schema["enum"])
    rules = " ".join(rule["rule"] for rule in schema.get("x-kubernetes-validations", []))
    if "(ms|s|m|h)" in rules:
        bound = ", longer than 0s" if "> duration('0s')" in rules else ""
        return "`Auto` or duration" if "'Auto'" in rules else f"duration{bound}"
    if schema.get("x-kubernetes-int-or-string"):
        text = rules + schema.get("pattern", "")
        return "quantity" if "Gi" in text else "number or percentage"
    if "'%'" in rules:
        return "percentage"
    low = schema.get("minimum")
    return schema.get("type", "") + ("" if low is None else f", at least {low}")


def yaml_word(value: Any) -> str:
    return json.dumps(value) if isinstance(value, (bool, list, dict)) else str(value)


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def reasons_page() -> str:
    """Every Reason in its group, from the enum and the comments in it."""
    lines = [
        MADE.format(source=f"{REASON.relative_to(ROOT)} and {SENTENCES.relative_to(ROOT)}"),
        "# Reasons\n",
        "A reason is one word for why something was done or not done. It is the same word in the",
        "status, conditions, events, the label `reason` of the metrics, and the log. Releases add",
        "words and never rename them. In `Advise` mode, events have the prefix `Would`, such as",
        "`WouldUnderutilized`.",
    ]
    sentences = yaml.safe_load(SENTENCES.read_text())
    for group, found in groups():
        heading = group[0].upper() + group[1:]
        lines += [f"\n## {heading}\n", "| reason | what it means |", "|---|---|"]
        lines += [f"| `{word}` | {cell(sentences[word])} |" for word in found]
    return "\n".join(lines) + "\n"


def groups() -> list[tuple[str, list[str]]]:
    """The comments of the enum, and the words below each."""
    found: list[tuple[str, list[str]]] = []
    for line in REASON.read_text().splitlines():
        if comment := re.fullmatch(r"    # (.+)", line):
            found.append((comment[1], []))
        elif word := re.fullmatch(r'    [A-Z_]+ = "(\w+)"', line):
            found[-1][1].append(word[1])
    return found


WIRE_INTRODUCTION = """\
# The wire

This page describes the messages between the operator and the agent in a scheduler. You need it to
read a packet or to write a tool of your own, but not to use dask-adaptive.

Each message is one call on the scheduler's own RPC port, with plain values: numbers, text, lists,
dicts. All times are durations in milliseconds, because the clocks of two machines are never
compared. The columns of a snapshot have one entry for each worker, in the same order; names are
sent once in a session.

```python
from distributed import Client

with Client("tcp://scheduler:8786") as client:
    answer = client.sync(client.scheduler.adaptive_observe, protocol=1)
    for name, tasks in zip(answer["introduced"]["name"], answer["workers"]["processing"]):
        print(name, "has", tasks, "tasks")
```

`None` instead of a dict means that this scheduler runs no agent.
"""


def wire_page() -> str:
    """Every message, from the classes of `wire.py` with their docstrings and comments."""
    source = WIRE.read_text()
    tree = ast.parse(source)
    comments = comments_of(source)
    constants = dict(constants_of(tree))
    calls = [f"`{v}`" for v in constants.values() if str(v).startswith("adaptive_")]
    lines = [
        MADE.format(source=WIRE.relative_to(ROOT)),
        WIRE_INTRODUCTION,
        f"The protocol number is **{constants['PROTOCOL']}**. Both sides refuse another one;",
        "`adaptive_hello` alone answers whatever the number.\n",
        f"Calls: {', '.join(calls)}.",
    ]
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            rows = [n for n in node.body if isinstance(n, ast.AnnAssign)]
            lines += [f"\n## {node.name}\n", ast.get_docstring(node) or "", ""]
            lines += ["| key | type | meaning |", "|---|---|---|"]
            lines += [wire_row(field, comments) for field in rows]
    lines += words(constants)
    return "\n".join(lines) + "\n"


def constants_of(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Names at the top of the module that stand for a number, a text, or several texts."""
    for node in tree.body:
        if not isinstance(node, ast.Assign):
            continue
        try:
            value = ast.literal_eval(node.value)
        except ValueError:
            continue  # put together from other names
        if isinstance(node.targets[0], ast.Tuple):
            yield from zip(map(ast.unparse, node.targets[0].elts), value, strict=True)
        else:
            yield ast.unparse(node.targets[0]), value


def words(constants: dict[str, Any]) -> Iterator[str]:
    yield "\n## Words\n"
    yield "| in `wire.py` | on the wire |"
    yield "|---|---|"
    for name, value in constants.items():
        shown = value if isinstance(value, tuple) else (value,)
        yield f"| `{name}` | {', '.join(f'`{one}`' for one in shown)} |"


def comments_of(source: str) -> dict[int, str]:
    """Comments by line."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}


def said_over(source: str, module: Any) -> dict[Any, str]:
    """By value of the module, also within a list: the comment over it."""
    comments = comments_of(source)
    found: dict[Any, str] = {}
    for node in ast.parse(source).body:
        first = node.lineno
        while first - 1 in comments:
            first -= 1
        text = " ".join(comments[line].lstrip(": ") for line in range(first, node.lineno))
        for name in ast.walk(node.targets[0]) if isinstance(node, ast.Assign) else ():
            if isinstance(name, ast.Name):
                value = getattr(module, name.id)
                found.update(dict.fromkeys(value if isinstance(value, list) else [value], text))
    return found


def wire_row(field: ast.AnnAssign, comments: dict[int, str]) -> str:
    assert isinstance(field.target, ast.Name)
    last = field.end_lineno or field.lineno
    said = [comments[line] for line in range(field.lineno, last + 2) if line in comments]
    # A comment on the line after belongs to this field only if the annotation stands in brackets.
    is_bracketed = last > field.lineno
    text = said[0] if said and (is_bracketed or field.lineno in comments) else ""
    return f"| `{field.target.id}` | `{cell(ast.unparse(field.annotation))}` | {cell(text)} |"


PATCHES_INTRODUCTION = """\
# What is changed in Dask

While the agent runs, it replaces these methods, handlers, attributes and functions of
`distributed`, and nothing else. It restores each of them when it is detached, in any order, even
if other code has wrapped them since. Before it changes a place, it runs the place's guard. If the
guard refuses, or a release does not have the place, only that feature is off; the agent's log and
the policy's events say so. On the newest release at most 9 places are changed by default; the
others only once something needs them.
`dask-adaptive.dev/inject: "false"` keeps the whole agent out of a cluster or a namespace.

In addition, the agent uses Dask's own interfaces to add handlers (see [the wire](wire.md)), a
SchedulerPlugin, and a plugin for workers and nannies.
"""


def patches_page() -> str:
    """Every place of upstream's that the agent replaces, from `patching.TARGETS`."""
    sys.path.insert(0, str(ROOT / "operator"))
    from dask_adaptive_agent import patching

    why = said_over(PATCHING.read_text(), patching)
    lines = [
        MADE.format(source="operator/dask_adaptive_agent/patching.py"),
        PATCHES_INTRODUCTION,
        "| place | why | in force | releases | guard | way out |",
        "|---|---|---|---|---|---|",
    ]
    places: dict[str, list[str]] = {}  # those of which the same is said are one row
    for target in patching.TARGETS:
        guard = " ".join(f"{target.guard.__doc__ if target.guard else ''} {target.proof}".split())
        said = (why[target], target.when, target.releases, guard, target.way_out)
        places.setdefault(" | ".join(map(str, said)), []).append(f"`{target}`")
    lines += [f"| {', '.join(named)} | {said} |" for said, named in places.items()]
    return "\n".join(lines) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "contributing/patches.md": patches_page,
    "reference/policy.md": policy_page,
    "reference/reasons.md": reasons_page,
    "contributing/wire.md": wire_page,
}


def stale() -> list[str]:
    """Pages that are not what the code says."""
    return [
        name
        for name, page in PAGES.items()
        if not (DOCS / name).exists() or (DOCS / name).read_text() != page()
    ]


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        if found := stale():
            raise SystemExit(f"out of date: {', '.join(found)}; run docs/generate.py")
    elif sys.argv[1:]:
        raise SystemExit(__doc__)
    else:
        for name, page in PAGES.items():
            (DOCS / name).write_text(page())


if __name__ == "__main__":
    main()
