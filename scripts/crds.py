"""
Make the CRDs from the dataclasses that declare specs and statuses; `sync_chart.py` writes them.

A field's type gives its schema, its default and its rules; the comment above it (`#:`) is its
description. What no declaration says is in scripts/crds: names, columns, and by class or field
what the schema has besides, such as rules between fields; null takes away.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import Any, get_origin

import yaml

from dask_adaptive.model.codec import (
    ITSELF,
    Declared,
    Kind,
    Listed,
    Must,
    Shape,
    declared,
    encode_as,
)

ROOT = Path(__file__).resolve().parents[1]
CRDS = ROOT / "helm/dask-adaptive-operator/files/crds"
JSON_SCHEMAS = ROOT / "manifests/schemas"

Schema = dict[str, Any]

#: In a description that says itself what the default is.
TOLD = re.compile(r"Default |\(default\)")

RULES = "x-kubernetes-validations"

#: What a rule begins with that a pattern can say, too.
PATTERN = re.compile(
    r"(self == '(?P<word>\w+)' \|\| )?self\.matches\('(?P<pattern>.+?)'\)(?= &&|$)"
)
MADE = "# Made by scripts/sync_chart.py from {models} and {source}. Edit these.\n"


def made() -> dict[Path, Callable[[], str]]:
    """Functions that return the text of each CRD and of its JSON schema, by file."""
    files: dict[Path, Callable[[], str]] = {}
    for source in sorted((ROOT / "scripts/crds").glob("*.yaml")):
        crd = Crd(source)
        files |= {CRDS / source.name: crd.text, JSON_SCHEMAS / crd.schema_name: crd.json_schema}
    return files


class _InFull(yaml.SafeDumper):
    """Writes what is the same in several places in each of them."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class Crd:
    """One CRD, made from a file of scripts/crds: its head, and what no declaration says."""

    def __init__(self, source: Path) -> None:
        self._source, self._part = source, ""
        self._head, self._besides = yaml.safe_load_all(source.read_text())
        if cut := sorted(without_value(self._head)):
            raise ValueError(f"{source}: put the text before {cut[0]!r} in quotes; a comma ends it")
        self._kind = self._head["spec"]["names"]["kind"]
        self._version = self._head["spec"]["versions"][0]
        #: As kubeconform and the catalogues of schemas name it.
        self.schema_name = f"{self._kind.lower()}_{self._version['name']}.json"
        self._models = list[str]()
        properties = self._version["schema"]["openAPIV3Schema"]["properties"]
        for self._part in ("spec", "status"):
            named = properties[self._part]
            module, name = named.rsplit(".", 1)
            properties[self._part] = self._object(getattr(importlib.import_module(module), name))
            self._models.append(named)

    def json_schema(self) -> str:
        """The schema for editors and kubeconform, which know no rules and no other kind."""
        schema = as_json_schema(self._version["schema"]["openAPIV3Schema"])
        version = f"{self._head['spec']['group']}/{self._version['name']}"
        schema["properties"]["apiVersion"]["enum"] = [version]
        schema["properties"]["kind"]["enum"] = [self._kind]
        schema["required"] = ["apiVersion", "kind", *schema["required"]]
        draft = {"$schema": "http://json-schema.org/draft-04/schema#"}
        return json.dumps(draft | schema, indent=1, ensure_ascii=False) + "\n"

    def text(self) -> str:
        models = " and ".join(self._models)
        made = MADE.format(models=models, source=self._source.relative_to(ROOT))
        return made + yaml.dump(
            self._head, Dumper=_InFull, sort_keys=False, width=120, allow_unicode=True
        )

    def _object(self, cls: Any) -> Schema:
        fields = declared(cls)
        schema: Schema = {"type": "object"}
        if required := [f.key for f in fields if f.default is MISSING]:
            schema["required"] = required
        schema["properties"] = {f.key: self._field(cls, f) for f in fields}
        return self._with(cls.__name__, schema)

    def _field(self, cls: Any, field: Declared) -> Schema:
        schema = self._of_shape(field.shape)
        if (default := self._default(field, schema)) is not None:
            schema["default"] = default
        text = docs(cls).get(field.own, "")
        if isinstance(default, (str, int)) and default != "" and not TOLD.search(text):
            shown = str(default).lower() if isinstance(default, bool) else default
            text += f" Default {shown}."
        schema = ({"description": text} if text else {}) | schema
        for owner in cls.__mro__:
            schema = self._with(f"{owner.__name__}.{field.own}", schema)
        return schema

    def _default(self, field: Declared, schema: Schema) -> Any:
        """The default of a spec's field; a status has none."""
        if self._part != "spec" or field.default in (MISSING, None):
            return None
        if "properties" in schema:
            has_one = any("default" in child for child in schema["properties"].values())
            return {} if has_one else None
        default = encode_as(field.shape, field.default)
        if isinstance(default, list):  # of an entry only what it sets
            return [{key: value for key, value in one.items() if value != []} for one in default]
        return default

    def _with(self, name: str, schema: Schema) -> Schema:
        merged = schema | self._besides.get(name, {})
        return {key: value for key, value in merged.items() if value is not None}

    def _of_shape(self, shape: Shape) -> Schema:
        if shape.kind:
            is_text = "x-kubernetes-int-or-string" not in shape.kind.schema
            schema = of_mark(shape.kind, {"type": "string"} if is_text else {})
        elif shape.inner is None:
            schema = self._object(shape.base)
        elif issubclass(get_origin(shape.base), Mapping):
            schema = {"type": "object", "additionalProperties": self._of_shape(shape.inner)}
        else:
            listed = next((m for m in shape.marks if isinstance(m, Listed)), Listed())
            schema = {"type": "array", **of_list(listed), "items": self._of_shape(shape.inner)}
        for mark in shape.marks:
            schema = of_mark(mark, schema) if isinstance(mark, Must) else schema
        return schema


def without_value(node: Any) -> Iterator[str]:
    """Keys without a value, such as the rest of a text that YAML's {a: text, rest} cuts."""
    if isinstance(node, list):
        node = dict(enumerate(node))
    for key, value in node.items() if isinstance(node, dict) else ():
        yield from [str(key)] if value is None else without_value(value)


def as_json_schema(schema: Schema) -> Schema:
    """Convert a schema of Kubernetes: unknown fields are refused, as kubectl does."""
    made = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes-")}
    if "x-kubernetes-int-or-string" in schema:
        made["type"] = ["integer", "string"]
    for rule in schema.get(RULES, ()):
        if found := PATTERN.match(rule["rule"]):
            word = f"^{found['word']}$|" if found["word"] else ""
            made["pattern"] = word + found["pattern"].replace("\\\\", "\\")
    if "properties" in made:
        made["properties"] = {key: as_json_schema(one) for key, one in made["properties"].items()}
        made["additionalProperties"] = "x-kubernetes-preserve-unknown-fields" in schema
    for key in ("items", "additionalProperties"):
        if isinstance(made.get(key), dict):
            made[key] = as_json_schema(made[key])
    return made


def of_mark(mark: Kind | Must, schema: Schema) -> Schema:
    """Add what a kind, or what must hold besides, says to the API server."""
    if isinstance(mark, Kind) and mark.longest:
        schema = schema | {"maxLength": mark.longest}
    schema = schema | mark.schema
    if mark.cel:
        schema[RULES] = [*schema.get(RULES, ()), {"rule": mark.cel, "message": mark.words}]
    return schema


def of_list(listed: Listed) -> Schema:
    most = {"maxItems": listed.most} if listed.most else {}
    if listed.key not in ("", ITSELF):
        keys = {"x-kubernetes-list-map-keys": [listed.key]}
        return {"x-kubernetes-list-type": "map", **keys, **most}
    return {"x-kubernetes-list-type": "set" if listed.key else "atomic", **most}


def docs(cls: Any) -> dict[str, str]:
    """The comments above the fields of a dataclass."""
    found: dict[str, str] = {}
    for owner in reversed(cls.__mro__[:-1]):
        above: list[str] = []
        for line in inspect.getsource(owner).splitlines():
            if comment := re.fullmatch(r"    #: (.*)", line):
                above.append(comment[1])
            elif above:
                found[line.strip().partition(":")[0]], above = " ".join(above), []
    return found
