#!/usr/bin/env python3
"""
Build a release into dist/ from the commit that is checked out: docs/contributing/release.md.

    make dist                          all of it
    make dist PARTS="wheels chart"     some parts: wheels, chart, plugin, image, notes

Nothing depends on the clock, on paths of this machine or on files that are not committed: every
date is the commit's.
"""

from __future__ import annotations

import argparse
import fcntl
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CACHE = Path(
    os.environ.get("DASK_ADAPTIVE_CACHE")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dask-adaptive"
)
CHART = "helm/dask-adaptive-operator"
LAUNCHER = "scripts/kubectl-dask_adaptive"

#: Platforms of the kubectl plugin, and what uv calls them; the Pythons that it runs on.
PLATFORMS = {
    "linux/amd64": "x86_64-manylinux_2_28",
    "linux/arm64": "aarch64-manylinux_2_28",
    "darwin/arm64": "aarch64-apple-darwin",
}
PYTHONS = ("3.11", "3.12", "3.13", "3.14")

#: Files of an installed package that name the machine or the time of its installation.
TRACES = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", ".lock")


class DistError(Exception):
    """Something is missing or wrong; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Release:
    """What is built, and where."""

    version: str
    revision: str
    epoch: int  # seconds: the commit's time, which all files get
    source: Path  # the commit's files
    out: Path
    work: Path  # goes away at the end

    @property
    def created(self) -> str:
        return datetime.fromtimestamp(self.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def say(text: str) -> None:
    print(f"dist: {text}", file=sys.stderr, flush=True)


def run(*command: str | Path, **options: Any) -> str:
    """Run a command and return what it prints; its errors go to the terminal."""
    try:
        done = subprocess.run(
            [str(word) for word in command],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )
    except FileNotFoundError as exc:
        raise DistError(f"{command[0]} is missing; install it, or put it on the PATH") from exc
    except subprocess.CalledProcessError as exc:
        raise DistError(f"{Path(command[0]).name} failed with exit code {exc.returncode}") from exc
    return str(done.stdout)


def tool(name: str) -> Path:
    return Path(run(ROOT / "scripts/go-tool.sh", name).strip())


# Archives


def files_of(tree: Path) -> list[Path]:
    """Files and links of a tree, in an order that no file system decides."""
    return sorted(path for path in tree.rglob("*") if path.is_symlink() or not path.is_dir())


def write_tar(tree: Path, target: Path, epoch: int) -> None:
    """Pack a tree so that the same files give the same bytes; compressed if the name ends so."""
    is_compressed = target.suffix in {".gz", ".tgz"}
    with open(target, "wb") as raw:
        packed = gzip.GzipFile("", "wb", 6, raw, mtime=epoch) if is_compressed else raw
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for path in files_of(tree):
                entry = tar.gettarinfo(path, str(path.relative_to(tree)))
                entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = epoch, 0, 0, "", ""
                entry.mode = 0o755 if entry.mode & 0o100 else 0o644
                if entry.isreg():
                    with open(path, "rb") as content:
                        tar.addfile(entry, content)
                else:
                    tar.addfile(entry)
        if packed is not raw:
            packed.close()


def unpack(archive: Path, target: Path) -> Path:
    target.mkdir()
    run("tar", "-xmf", archive, "-C", target)
    return target


def sha256(path: Path) -> str:
    with open(path, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


# The parts


def wheels(release: Release) -> None:
    """Wheel and sdist of each distribution."""
    for folder in ("", "operator", "operator/dask_adaptive_lab"):
        run(sys.executable, "-m", "build", "--outdir", release.out, release.source / folder)


def chart(release: Release) -> None:
    """
    The chart, packed again because `helm package` writes the time into it, and the JSON schemas of
    its CRDs.
    """
    words = ["package", release.source / CHART, "--destination", release.work]
    packed = Path(run(tool("helm"), *words).strip().rpartition(": ")[2])
    unpacked = release.work / "chart"
    unpack(packed, unpacked)
    write_tar(unpacked, release.out / packed.name, release.epoch)
    for schema in (release.source / "manifests/schemas").iterdir():
        shutil.copy(schema, release.out)


def plugin(release: Release) -> None:
    """`kubectl dask-adaptive` with all that it needs, for each platform; and krew's manifest."""
    archives = {}
    for platform, tag in PLATFORMS.items():
        tree = release.work / platform
        for python in PYTHONS:
            vendor(release, tree / "lib" / python, python, tag)
        share(tree / "lib")
        shutil.copy(release.source / LAUNCHER, tree)
        shutil.copy(release.source / "LICENSE", tree)
        name = f"kubectl-dask_adaptive-{release.version}-{platform.replace('/', '-')}.tar.gz"
        write_tar(tree, release.out / name, release.epoch)
        archives[platform] = release.out / name
    url = os.environ.get("RELEASE_URL")
    if not url:
        say("no krew manifest: set RELEASE_URL to the address at which dist/ will be published")
        return
    (release.out / "dask-adaptive.yaml").write_text(krew_manifest(release.version, url, archives))


def vendor(release: Release, target: Path, python: str, platform: str) -> None:
    """Install our wheel and what is locked into a folder, for another Python or platform."""
    ours = sorted(release.out.glob("dask_adaptive-*.whl"))
    if not ours:
        raise DistError("the plugin is made from the wheel; build both: PARTS='wheels plugin'")
    install: list[str | Path] = [sys.executable, "-m", "uv", "pip", "install", "--quiet"]
    install += ["--no-deps", "--target", target]
    install += ["--python-version", python, "--python-platform", platform]
    lock = release.source / "requirements.lock"
    run(*install, "--only-binary", ":all:", "--require-hashes", "--requirement", lock)
    run(*install, "--no-index", *ours)
    shutil.rmtree(target / "bin", ignore_errors=True)
    for name in TRACES:
        for path in target.rglob(name):
            path.unlink()


def share(lib: Path) -> None:
    """Move what is the same for every Python from its folders into one: most of it."""
    first, *others = sorted(lib.iterdir())
    (lib / "any").mkdir()
    for package in sorted(first.iterdir()):
        copies = [other / package.name for other in others]
        if all(tree_hash(copy) == tree_hash(package) for copy in copies):
            package.rename(lib / "any" / package.name)
            for copy in copies:
                shutil.rmtree(copy) if copy.is_dir() else copy.unlink()


def tree_hash(path: Path) -> str:
    """A hash of a file, or of the names and contents of a folder; it may be missing."""
    files = [path] if path.is_file() else files_of(path)
    lines = [f"{file.relative_to(path.parent)} {sha256(file)}" for file in files]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def krew_manifest(version: str, url: str, archives: dict[str, Path]) -> str:
    """A manifest for `kubectl krew install --manifest`, or for an index."""
    platforms = [
        {
            "selector": {
                "matchLabels": dict(zip(("os", "arch"), platform.split("/"), strict=True))
            },
            "uri": f"{url.rstrip('/')}/{archive.name}",
            "sha256": sha256(archive),
            "bin": Path(LAUNCHER).name,
        }
        for platform, archive in archives.items()
    ]
    manifest = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "dask-adaptive"},
        "spec": {
            "version": f"v{version}",
            "shortDescription": "Explain and steer adaptive scaling of Dask clusters",
            "description": "Shows why a Dask cluster has the workers that it has, which one may"
            " leave and when; pins and replaces workers. It works with the operator dask-adaptive.",
            "caveats": f"It needs Python {PYTHONS[0]} to {PYTHONS[-1]} on the PATH.",
            "platforms": platforms,
        },
    }
    return json.dumps(manifest, indent=2) + "\n"  # JSON is YAML


def image(release: Release) -> None:
    """The image as an archive in OCI's layout, its digest, and an SBOM of what is in it."""
    layout = release.work / "image"
    builder = os.environ.get("IMAGE_BUILDER") or "buildah"
    if builder == "docker":
        build_with_docker(release, layout)
    elif builder in {"buildah", "podman"}:
        build_with_buildah(release, builder, layout)
    else:
        raise DistError(
            f"IMAGE_BUILDER={builder} is not known; set it to buildah, podman or docker"
        )
    name = f"dask-adaptive-{release.version}"
    write_tar(layout, release.out / f"{name}.oci.tar", release.epoch)
    (manifest,) = json.loads((layout / "index.json").read_text())["manifests"]
    (release.out / f"{name}.digest").write_text(manifest["digest"] + "\n")
    sbom(release, layout, manifest["digest"], release.out / f"{name}.spdx.json")


def is_local(builder: str) -> bool:
    """Tells whether the base is made here, from Debian's packages: no registry is needed."""
    return builder == "buildah" and not os.environ.get("BASE_IMAGE")


def given_base() -> tuple[str, str]:
    """The base image that was asked for, and its digest."""
    base = os.environ.get("BASE_IMAGE", "")
    if "@sha256:" not in base:
        raise DistError(
            f"BASE_IMAGE='{base}' names no digest, so that the base may be another one tomorrow;"
            " set it to NAME@sha256:…, of an image with Python 3.11"
        )
    return base, base.partition("@")[2]


def labels(release: Release, base: str, digest: str) -> dict[str, str]:
    """OCI's labels of this build; those that never change are in the Dockerfile."""
    found = {
        "version": release.version,
        "revision": release.revision,
        "created": release.created,
        "base.name": base.partition("@")[0],
        "base.digest": digest,
        "source": os.environ.get("PROJECT_URL", ""),
    }
    return {f"org.opencontainers.image.{key}": value for key, value in found.items() if value}


def build_arguments(release: Release, base: str, digest: str) -> list[str]:
    words = [f"--label={key}={value}" for key, value in labels(release, base, digest).items()]
    if os.environ.get("PLATFORM"):
        words.append(f"--platform={os.environ['PLATFORM']}")
    return [*words, "--no-cache", f"--build-arg=BASE_IMAGE={base}"]


def build_with_docker(release: Release, layout: Path) -> None:
    output = f"type=oci,tar=false,rewrite-timestamp=true,dest={layout}"
    words = build_arguments(release, *given_base())
    # BuildKit takes the time from SOURCE_DATE_EPOCH, which `release_of` sets.
    words += ["--provenance=false", f"--output={output}", str(release.source)]
    run("docker", "buildx", "build", *words)


def build_with_buildah(release: Release, builder: str, layout: Path) -> None:
    """buildah and podman take the same arguments."""
    name = f"localhost/dask-adaptive:{release.version}"
    with store(release, builder) as command:
        base, digest = local_base(command) if is_local(builder) else given_base()
        words = build_arguments(release, base, digest)
        words += [f"--timestamp={release.epoch}", "--network=host", f"--tag={name}"]
        certificates = os.environ.get("SSL_CERT_FILE")  # pip must trust what this machine trusts
        if certificates:
            words.append(f"--volume={certificates}:/etc/ssl/certs/ca-certificates.crt:ro")
        say(f"building the image with {builder}")
        run(*command, "build", *words, release.source)
        run(*command, "push", "--quiet", name, f"oci:{layout}:dask-adaptive:{release.version}")
        run(*command, "rmi", name)


@contextmanager
def store(release: Release, builder: str) -> Iterator[list[str]]:
    """The builder's command; buildah's on the store of localnode/images.sh, and under its lock."""
    if builder != "buildah":
        yield [builder]
        return
    if is_local(builder):
        run(ROOT / "localnode/images.sh", "python")
    lock = Path(os.environ.get("LOCALNODE_IMAGES") or CACHE / "images") / ".lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        root = CACHE / "buildah"
        command = ["buildah", "--root", str(root), "--runroot", str(release.work / "run")]
        try:
            yield command
        finally:  # a build that failed leaves its containers, and every one a mount
            run(*command, "rm", "--all")
            subprocess.run(["umount", root / "overlay"], check=False, stderr=subprocess.DEVNULL)


def local_base(command: Sequence[str]) -> tuple[str, str]:
    """The base that localnode/images.sh makes from Debian's packages, and its digest."""
    base = "localhost/python:3.11"
    form = "--format={{.FromImageDigest}}"
    return base, run(*command, "inspect", "--type=image", form, base).strip()


def sbom(release: Release, layout: Path, digest: str, target: Path) -> None:
    """What the image contains, in SPDX; its date and its name come from the image."""
    words = [
        "--source-name=dask-adaptive",
        f"--source-version={release.version}",
        "--output=spdx-json",
    ]
    quiet = os.environ | {"SYFT_CHECK_FOR_APP_UPDATE": "false"}
    found = json.loads(run(tool("syft"), "scan", "--quiet", *words, f"oci-dir:{layout}", env=quiet))
    found["creationInfo"]["created"] = release.created
    found["documentNamespace"] = uuid.uuid5(uuid.NAMESPACE_OID, digest).urn
    target.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def notes(release: Release) -> None:
    """Notes of the release: its section of the changelog, and the fragments that are left."""
    text = section((release.source / "CHANGELOG.md").read_text(), release.version)
    if list((release.source / "changelog.d").glob("*.*.md")):
        words = ["--draft", f"--version={release.version}", f"--date={release.created[:10]}"]
        draft = run(sys.executable, "-m", "towncrier", "build", *words, cwd=release.source)
        text += draft.partition("\n")[2]  # without its title
    (release.out / "release-notes.md").write_text(text.strip() + "\n")


def section(changelog: str, version: str) -> str:
    """The changelog's part about this version; one in development has none."""
    title = rf"^## {re.escape(version)} "
    found = re.search(rf"{title}.*?(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if not found and ".dev" not in version:
        raise DistError(f"CHANGELOG.md has no section '## {version} (…)'")
    return found[0] if found else ""


# All together

PARTS = {"wheels": wheels, "chart": chart, "plugin": plugin, "image": image, "notes": notes}


def sums(release: Release) -> None:
    """Checksums of all files, and a signature of these, which covers all that the files contain."""
    files = sorted(path for path in release.out.iterdir() if not path.name.startswith("SHA256SUMS"))
    listed = release.out / "SHA256SUMS"
    listed.write_text("".join(f"{sha256(path)}  {path.name}\n" for path in files))
    key = os.environ.get("COSIGN_KEY")
    if not key:
        say("not signed: set COSIGN_KEY to the key that cosign signs with (and COSIGN_PASSWORD)")
        return
    # Without a transparency log: it would need the network, and a release may be private.
    offline = ["--use-signing-config=false", "--tlog-upload=false", "--yes"]
    bundle = f"--bundle={listed}.sigstore.json"
    run(tool("cosign"), "sign-blob", "--key", key, *offline, bundle, listed)


def versions(source: Path) -> set[str]:
    """The versions that the files of a release state; a release has one."""
    places = {
        "operator/dask_adaptive_agent/__init__.py": r'^__version__ = "(.+)"$',
        f"{CHART}/Chart.yaml": r"^(?:version|appVersion): (.+)$",
    }
    return {
        version.strip("\"'").replace("-dev", ".dev")  # Helm's charts have semantic versions
        for name, pattern in places.items()
        for version in re.findall(pattern, (source / name).read_text(), re.MULTILINE)
    }


def release_of(out: Path, work: Path) -> Release:
    """The commit that is checked out, as a folder of its own."""
    git = ["git", "-C", str(ROOT)]
    if run(*git, "status", "--porcelain").strip():
        say("there are changes that are not committed; they are not in what is built")
    run(*git, "-c", "tar.umask=022", "archive", "--output", work / "source.tar", "HEAD")
    source = unpack(work / "source.tar", work / "source")
    found = versions(source)
    if len(found) != 1:
        raise DistError(f"the chart and the packages disagree about the version: {sorted(found)}")
    version = found.pop()
    tags = run(*git, "tag", "--points-at", "HEAD", "--list", "v*").split()
    if tags and f"v{version}" not in tags:
        raise DistError(f"the commit is tagged {', '.join(tags)}, but its files are of {version}")
    revision, epoch = run(*git, "log", "-1", "--format=%H %ct").split()
    os.environ["SOURCE_DATE_EPOCH"] = epoch  # read by the tools that build
    return Release(version, revision, int(epoch), source, out, work)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build a release.")
    parser.add_argument("parts", nargs="*", help=f"some of: {', '.join(PARTS)}; all, if none")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    wanted = parser.parse_args()
    unknown = set(wanted.parts) - PARTS.keys()
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    try:
        # Only a folder that we made is emptied.
        mark = wanted.out / "SHA256SUMS"
        if wanted.out.is_dir() and any(wanted.out.iterdir()) and not mark.exists():
            raise DistError(
                f"{wanted.out} holds files of somebody else; empty it, or choose another"
            )
        shutil.rmtree(wanted.out, ignore_errors=True)
        wanted.out.mkdir(parents=True)
        mark.touch()
        with tempfile.TemporaryDirectory(prefix="dask-adaptive-dist.") as work:
            release = release_of(wanted.out.resolve(), Path(work))
            for name, build in PARTS.items():
                if not wanted.parts or name in wanted.parts:
                    say(name)
                    build(release)
            sums(release)
    except DistError as exc:
        sys.exit(f"dist: {exc}")
    print(mark.read_text(), end="")


if __name__ == "__main__":
    main()
