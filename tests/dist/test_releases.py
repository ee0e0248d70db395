"""A release made twice from one commit is the same; and each of its files does what it is for."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from dask_adaptive_agent import __version__
from support.kube_server import binary

ROOT = Path(__file__).resolve().parents[2]
#: It holds another random number each time: such are signatures by elliptic curves.
SIGNATURE = "SHA256SUMS.sigstore.json"

pytestmark = pytest.mark.timeout(3600)


def run(*command: str | Path, **env: str) -> str:
    done = subprocess.run(
        [str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True, env=os.environ | env
    )
    return done.stdout


def tool(name: str) -> str:
    return run(ROOT / "scripts/go-tool.sh", name).strip()


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key that is thrown away; its other half is beside it, as .pub."""
    folder = tmp_path_factory.mktemp("key")
    command = [tool("cosign"), "generate-key-pair"]
    subprocess.run(command, check=True, cwd=folder, env=os.environ | {"COSIGN_PASSWORD": "test"})
    return folder / "cosign.key"


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder, and the address at which it can be read."""
    folder = tmp_path_factory.mktemp("published")
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="session")
def releases(
    key: Path, published: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory
) -> list[Path]:
    place, url = published
    folders = [place, tmp_path_factory.mktemp("again")]
    for folder in folders:
        variables = {"COSIGN_KEY": str(key), "COSIGN_PASSWORD": "test", "RELEASE_URL": url}
        run(ROOT / ".venv-dist/bin/python", ROOT / "scripts/dist.py", "--out", folder, **variables)
    return folders


@pytest.fixture(scope="session")
def release(releases: list[Path]) -> Path:
    return releases[0]


def the(release: Path, pattern: str) -> Path:
    (found,) = release.glob(pattern)
    return found


@pytest.fixture(scope="session")
def layout(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image's archive, unpacked."""
    folder = tmp_path_factory.mktemp("layout")
    run("tar", "-xf", the(release, "*.oci.tar"), "-C", folder)
    return folder


def blob(layout: Path, digest: str) -> Path:
    return layout / "blobs" / digest.replace(":", "/")


def config_of(layout: Path) -> tuple[dict[str, Any], list[Path]]:
    """The image's configuration, and its layers."""
    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
    manifest = json.loads(blob(layout, entry["digest"]).read_text())
    config = json.loads(blob(layout, manifest["config"]["digest"]).read_text())
    return config, [blob(layout, layer["digest"]) for layer in manifest["layers"]]


def test_the_same_commit_gives_the_same_bytes(releases: list[Path]) -> None:
    one, other = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in releases)

    assert one.keys() == other.keys()
    assert [] == [name for name in one if one[name] != other[name] and name != SIGNATURE]


def test_checksums_cover_every_file(release: Path) -> None:
    listed = {line.split()[1] for line in (release / "SHA256SUMS").read_text().splitlines()}

    assert {path.name for path in release.iterdir()} == listed | {"SHA256SUMS", SIGNATURE}


def test_the_page_verifies_and_finds_forged_files(release: Path, key: Path, tmp_path: Path) -> None:
    """Its commands as they stand, by somebody who has the files, the key and cosign."""
    page, _, _ = (ROOT / "docs/howto/verify-a-release.md").read_text().partition("In a registry")
    shell = ["bash", "-euxo", "pipefail", "-c", "\n".join(re.findall(r"^    (.+)$", page, re.M))]
    for file in (*release.iterdir(), key.with_suffix(".pub")):
        shutil.copy(file, tmp_path)
    (tmp_path / "cosign").symlink_to(tool("cosign"))
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    subprocess.run(shell, check=True, cwd=tmp_path, env=env)
    (tmp_path / "SHA256SUMS").write_text("forged\n")
    assert subprocess.run(shell, check=False, cwd=tmp_path, env=env).returncode


def test_wheels_install_and_run(release: Path, tmp_path: Path) -> None:
    printed = {}
    # Two distributions with one package in common: a user installs one of them.
    for name, others, command in (
        ("dask_adaptive", ["dask_adaptive_lab"], ["dask-adaptive", "--version"]),
        ("dask_adaptive_agent", [], ["python", "-c", "from dask_adaptive_agent import pinned, want"]),
    ):
        folder = tmp_path / name
        run(sys.executable, "-m", "venv", folder)
        wheels = [the(release, f"{wheel}-*.whl") for wheel in (name, *others)]
        run(folder / "bin/pip", "install", "--quiet", *wheels)
        printed[name] = run(folder / "bin" / command[0], *command[1:])

    assert re.search(r"^dask-adaptive +\d", printed["dask_adaptive"], re.MULTILINE)
    run(tmp_path / "dask_adaptive/bin/dask-adaptive", "simulate", "--help")
    assert not printed["dask_adaptive_agent"]


def test_an_sdist_holds_what_is_committed_and_nothing_else(release: Path) -> None:
    committed = set(run("git", "-C", ROOT, "ls-tree", "-r", "--name-only", "HEAD").splitlines())

    lab = {"dask_adaptive_lab": "operator/dask_adaptive_lab/"}
    for name, folder in {"dask_adaptive": "", "dask_adaptive_agent": "operator/", **lab}.items():
        with tarfile.open(the(release, f"{name}-*.tar.gz")) as tar:
            held = {entry.name.partition("/")[2] for entry in tar if entry.isfile()}
        assert {"LICENSE", "PKG-INFO"} <= held
        assert held - {"LICENSE", "PKG-INFO"} <= {path.removeprefix(folder) for path in committed}


def test_the_chart_is_one_that_helm_reads(release: Path) -> None:
    packed = the(release, "dask-adaptive-operator-*.tgz")

    shown = yaml.safe_load(run(binary("helm"), "show", "chart", packed))
    source = yaml.safe_load((ROOT / "helm/dask-adaptive-operator/Chart.yaml").read_text())
    assert shown == source
    with tarfile.open(packed) as tar:
        held = {entry.name.partition("/")[2] for entry in tar}
    folder = "helm/dask-adaptive-operator"
    listed = run("git", "-C", ROOT, "ls-tree", "-r", "--name-only", "HEAD", folder).splitlines()
    # .helmignore leaves out the template of the README.
    assert held | {"README.md.gotmpl"} == {path.removeprefix(f"{folder}/") for path in listed}
    values = ["--kube-version", "1.34.0", "--set", "image.repository=registry.example.com/x"]
    assert "kind: Deployment" in run(binary("helm"), "template", "x", packed, *values)


def test_the_image_is_the_one_of_its_digest(release: Path, layout: Path) -> None:
    config, _ = config_of(layout)
    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]

    assert entry["digest"] == the(release, "*.digest").read_text().strip()
    sums = run("sha256sum", *sorted((layout / "blobs/sha256").iterdir())).splitlines()
    assert all(Path(line.split()[1]).name == line.split()[0] for line in sums)
    labels = config["config"]["Labels"]
    revision = run("git", "-C", ROOT, "rev-parse", "HEAD").strip()
    assert labels["org.opencontainers.image.revision"] == revision
    assert labels["org.opencontainers.image.base.digest"].startswith("sha256:")
    assert config["config"]["User"] == "1000"


def in_a_restricted_pod(layout: Path, folder: Path, user: int, *command: str) -> str:
    """Run a command in the image: a root that is read-only, no capability, no name for the user."""
    config, layers = config_of(layout)
    rootfs = folder / "rootfs"
    if not rootfs.exists():
        rootfs.mkdir()
        for layer in layers:
            run("tar", "-xzf", layer, "-C", rootfs)
        run("runc", "spec", "--bundle", folder)
    spec = json.loads((folder / "config.json").read_text())
    spec["root"]["readonly"] = True
    spec["process"] |= {
        "terminal": False,
        "user": {"uid": user, "gid": 0},
        "capabilities": {},
        "noNewPrivileges": True,
        "env": config["config"]["Env"],
        "args": list(command),
    }
    (folder / "config.json").write_text(json.dumps(spec))
    return run("runc", "run", "--no-pivot", "--bundle", folder, f"dist-test-{os.getpid()}")


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("runc"), reason="needs root and runc to start a container"
)
def test_the_image_runs_in_a_restricted_pod(layout: Path, tmp_path: Path) -> None:
    for user in (1000, 1_000_650_000):  # ours, and one as OpenShift chooses them
        version = in_a_restricted_pod(layout, tmp_path, user, "dask-adaptive", "--version")
        assert re.match(r"dask-adaptive +\d", version)
        usage = in_a_restricted_pod(layout, tmp_path, user, "dask-adaptive", "run", "--help")
        assert "Run the operator." in usage
        # kopf asks at its start who runs it.
        who = "from kopf._core.engines.peering import detect_own_id as d; print(d(manual=True))"
        assert "@" in in_a_restricted_pod(layout, tmp_path, user, "python", "-c", who)
        write = "touch /etc/x /opt/venv/x 2>/dev/null && echo written || echo refused"
        assert "refused\n" == in_a_restricted_pod(layout, tmp_path, user, "sh", "-c", write)


def test_the_image_is_compiled(layout: Path) -> None:
    """Else each start would compile a few thousand modules, and could not keep the result."""
    _, layers = config_of(layout)

    with tarfile.open(layers[-1]) as tar:
        names = set(tar.getnames())
    modules = [name for name in names if name.endswith(".py") and "/dask_adaptive" in name]
    assert len(modules) > 120
    assert not [module for module in modules if "/dask_adaptive_lab/" in module]
    for module in modules:
        folder, _, file = module.rpartition("/")
        assert f"{folder}/__pycache__/{file[:-3]}.cpython-311.pyc" in names


def plain(name: str) -> str:
    """The name of a distribution, as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_sbom_lists_what_the_image_holds(release: Path, layout: Path) -> None:
    sbom = json.loads(the(release, "*.spdx.json").read_text())
    found = {(plain(p["name"]), p.get("versionInfo")) for p in sbom["packages"]}
    _, layers = config_of(layout)

    with tarfile.open(layers[-1]) as tar:
        names = tar.getnames()
    infos = [re.search(r"/([^/]+)-([^/-]+)\.dist-info/METADATA$", name) for name in names]
    installed = {(plain(info[1]), info[2]) for info in infos if info}
    assert {"dask-adaptive", "kopf"} <= {name for name, _ in installed}
    assert installed <= found
    assert "libc6" in {name for name, _ in found}
    assert sbom["spdxVersion"] == "SPDX-2.3"


@pytest.fixture(scope="session")
def plugins(release: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The plugin's archives, unpacked, by platform."""
    found = {}
    for archive in release.glob("kubectl-dask_adaptive-*.tar.gz"):
        platform = archive.name.removesuffix(".tar.gz").partition("-dask_adaptive-")[2].partition("-")[2]
        found[platform] = tmp_path_factory.mktemp(platform)
        run("tar", "-xf", archive, "-C", found[platform])
    return found


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
def test_the_plugin_runs_on_a_python_without_packages(
    plugins: dict[str, Path], python: str, tmp_path: Path
) -> None:
    interpreter = run(ROOT / "scripts/python.sh", python).strip()
    run(interpreter, "-m", "venv", "--without-pip", tmp_path)
    # krew links to the program from a folder on the PATH.
    linked = tmp_path / "bin/kubectl-dask_adaptive"
    linked.symlink_to(plugins["linux-amd64"] / "kubectl-dask_adaptive")
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"

    cache = {"PYTHONPYCACHEPREFIX": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": ""}
    assert run(linked, "--version", PATH=path, **cache).startswith("dask-adaptive ")
    assert list(tmp_path.rglob(f"cli/*.cpython-{python.replace('.', '')}.pyc")), "it ran on that one"
    assert "Usage: kubectl dask-adaptive" in run(linked, "explain", "--help", PATH=path)


#: The first bytes of a shared library: its format, and further on its processor.
MACHINES = {
    "linux-amd64": (b"\x7fELF", 18, b"\x3e\x00"),
    "linux-arm64": (b"\x7fELF", 18, b"\xb7\x00"),
    "darwin-arm64": (b"\xcf\xfa\xed\xfe", 4, b"\x0c\x00\x00\x01"),
}


@pytest.mark.parametrize("platform", MACHINES)
def test_libraries_are_for_the_platform(plugins: dict[str, Path], platform: str) -> None:
    magic, offset, machine = MACHINES[platform]

    libraries = sorted(plugins[platform].rglob("*.so"))
    assert len(libraries) > 10
    for library in libraries:
        head = library.read_bytes()[:32]
        if head[:4] == b"\xca\xfe\xba\xbe":
            continue  # for several processors at once, as Apple does it
        assert (head[:4], head[offset : offset + len(machine)]) == (magic, machine), library


def test_krew_installs_the_plugin(
    release: Path, published: tuple[Path, str], tmp_path: Path
) -> None:
    """krew's own check downloads and installs the archive of every platform."""
    manifest = release / "dask-adaptive.yaml"
    (tmp_path / "kubectl-krew").symlink_to(tool("krew"))
    (tmp_path / "kubectl").symlink_to(shutil.which(binary("kubectl")) or "")
    krew = {"KREW_ROOT": str(tmp_path / "krew"), "KREW_NO_UPGRADE_CHECK": "1"}
    krew["PATH"] = f"{tmp_path}:{tmp_path / 'krew/bin'}:{os.environ['PATH']}"

    run(tool("validate-krew-manifest"), "--manifest", manifest, **krew)
    run("kubectl", "krew", "install", "--manifest", manifest, **krew)
    assert re.search(r"^dask-adaptive +\d", run("kubectl", "dask-adaptive", "--version", **krew))
    assert published[1] in manifest.read_text()


def test_the_notes_tell_the_newest_section_and_every_fragment(release: Path) -> None:
    told = " ".join((release / "release-notes.md").read_text().split())

    newest = "" if ".dev" in __version__ else (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1]
    for text in [newest, *(file.read_text() for file in (ROOT / "changelog.d").glob("*.*.md"))]:
        assert " ".join(text.split()) in told
