"""`dask-adaptive budget [NAME]`: what clusters share, who has it, and who waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
from rich.text import Text

from dask_adaptive.cli.access import NOTHING, Access, fail, kube_options, output_option
from dask_adaptive.cli.output import BAD, HEAD, ODD, Cell, aligned, dump, show
from dask_adaptive.kube.api import BUDGETS, NotFound

if TYPE_CHECKING:
    from dask_adaptive.kube.api import Json, KubeApi

_COLUMNS = ("NAMESPACE", "CLUSTER", "GROUP", "HELD", "WANTED", "ALLOWED", "WAITS SINCE")


@click.command("budget")
@click.argument("name", required=False)
@kube_options
@output_option
def command(name: str | None, access: Access, output: str) -> None:
    """
    Show who has what of each AdaptiveBudget, or of NAME: held, wanted, allowed, waiting.

    Budgets are in no namespace, unless the operator was installed with Namespaced ones. Exit code 1
    if there is none.
    """

    async def question(api: KubeApi) -> list[Json]:
        field = f"metadata.name={name}" if name else ""
        try:
            return await api.list(BUDGETS.path(access.namespace), field=field)
        except NotFound:  # they are in no namespace
            return await api.list(BUDGETS.path(), field=field)

    budgets = access.ask(question)
    if not budgets:
        fail(
            f"there is no AdaptiveBudget {name}" if name else "there is no AdaptiveBudget", NOTHING
        )
    if output != "table":
        dump({"items": budgets}, output)
        return
    lines = [list(_lines_of(budget)) for budget in budgets]
    show([line for budget in lines for line in ("", *budget)][1:])


def _lines_of(budget: Json) -> Iterator[Cell]:
    status = budget.get("status") or {}
    ready: Json = next((c for c in status.get("conditions") or () if c["type"] == "Ready"), {})
    said = ready.get("message") or "the operator has not processed it yet; is it running?"
    is_fine = ready.get("status") == "True"
    yield Text.assemble((_title(budget), HEAD), ": ", (said, "" if is_fine else BAD))
    limits, held = budget["spec"]["limits"], status.get("held") or {}
    yield "  " + ", ".join(f"{held.get(r, '?')} of {limit}" for r, limit in limits.items())
    rows = [
        (g["namespace"], g["cluster"], g["name"], str(g["held"]), str(g["wanted"]),
         str(g["allowed"]), Text(g.get("waitingSince", ""), ODD))
        for g in status.get("groups") or ()
    ]  # fmt: skip
    yield from aligned(_COLUMNS, rows, indent="  ")


def _title(budget: Json) -> str:
    meta = budget["metadata"]
    return "/".join(filter(None, (meta.get("namespace"), meta["name"])))
