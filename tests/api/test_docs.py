"""Commands of the documentation, run as they stand there on objects of the names that they use."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.doc_commands import DocCommand, doc_commands, is_for_api, pages
from support.kube_bodies import cluster_of_one, labels_of, pod, policy
from support.kube_server import ROOT, Kubectl, binary, namespace, ran
from support.walk import blocks

WORKER = "etl-default-worker-1f0c2d9a4e"
POD = f"{WORKER}-7d4f"

COMMANDS = sorted({c.text: c for c in doc_commands() if is_for_api(c)}.values(), key=str)

#: Whole objects in the pages, by page.
OBJECTS = [
    (str(page.relative_to(ROOT)), block.text)
    for page in pages()
    for block in blocks(page)
    if block.language == "yaml" and block.text.startswith("apiVersion:")
]


@pytest.fixture(scope="module")
def etl(admin: Kubectl) -> Iterator[Kubectl]:
    """A cluster `etl` with a policy, and one worker with its Deployment and its pinned pod."""
    labels, notes = labels_of("worker"), {"dask-adaptive.dev/pin": "1h"}
    pinned = pod(POD, of=WORKER, labels=labels, annotations=notes)
    with namespace(admin) as kubectl:
        kubectl.apply(*cluster_of_one(WORKER), policy("etl"), pinned)
        yield kubectl
        kubectl("delete", "daskclusters,daskworkergroups,dap", "--all", "--wait=false")
        kubectl(
            "delete", "deployments,pods", "--all", "--force", "--grace-period=0", "--wait=false"
        )


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c.text[:60])
def test_a_command_of_the_docs_works(command: DocCommand, etl: Kubectl, tmp_path: Path) -> None:
    programs = [str(Path(sys.executable).parent), str(Path(binary("kubectl")).parent)]
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_bytes(Path(etl.kubeconfig).read_bytes())
    path = os.pathsep.join([*programs, os.environ["PATH"]])
    env = {**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": path}
    enter = f"kubectl config set-context --current --namespace {etl.namespace}"

    typed = f"{enter}\n{_with_names(command.text, etl.namespace)}"
    done = ran("bash", "-ec", typed, env=env, cwd=tmp_path, timeout=60)

    assert 0 == done.returncode, f"{command.text}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize(("page", "text"), OBJECTS, ids=[page for page, _ in OBJECTS])
def test_an_object_of_the_docs_is_accepted(page: str, text: str, etl: Kubectl) -> None:
    anywhere = re.sub(r"^  namespace: .*\n", "", text, flags=re.MULTILINE)

    etl("apply", "--dry-run=server", "-f", "-", stdin=anywhere)


def _with_names(text: str, team: str) -> str:
    text = re.sub(r"\bPOD\b|demo-default-worker-…", POD, text)
    text = re.sub(r"\b(team|dask-adaptive-demo)\b", team, text)
    text = re.sub(r"\b(CLUSTER|demo)\b", "etl", text)
    # Checked by the API server, and not written: another command sets another value.
    if re.match("kubectl (annotate|label|patch) ", text):
        text += " --dry-run=server"
    return text.replace("kubectl annotate ", "kubectl annotate --overwrite ")
