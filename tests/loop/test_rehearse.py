"""`dask-adaptive rehearse` as a person runs it, with a script of their own."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from click.testing import CliRunner

from dask_adaptive.cli.main import cli

EXAMPLE = Path(__file__).parents[2] / "manifests/examples/policy.yaml"
SCRIPT = """
import sys, time
from distributed import Client

if __name__ == "__main__":
    with Client() as client:
        print("sum", sum(client.gather(client.map(lambda x: time.sleep(0.1) or x, range(20)))))
    sys.exit(int(sys.argv[1]))
"""


def test_a_script_runs_under_a_policy(tmp_path: Path) -> None:
    spec = {"clusterRef": {"name": "etl"}, "maxReplicas": 2, "idleTimeout": "1s"}
    policy, script = tmp_path / "policy.yaml", tmp_path / "script.py"
    policy.write_text(yaml.safe_dump({"kind": "AdaptivePolicy", "spec": spec}))
    script.write_text(SCRIPT)

    result = CliRunner().invoke(cli, ["rehearse", str(policy), str(script), "7"])

    assert 7 == result.exit_code, result.output
    assert "sum 190" in result.output
    assert re.search(r"rerun by scaling +0 *\n", result.output)


def test_the_demo_comes_to_its_end() -> None:
    """All that `make demo` shows, in its four acts, does happen."""
    result = CliRunner().invoke(cli, ["rehearse", str(EXAMPLE)])

    assert 0 == result.exit_code, result.output
    assert re.search(r"rerun by scaling +0 *\n", result.output)
