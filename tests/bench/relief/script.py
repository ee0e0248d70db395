"""
A user's script, in a process of its own: runs the workload that a line of standard input names.

    python script.py ADDRESS     then lines such as: map-script 1000

Its functions are those of `__main__`, so that they are pickled by value, as at most users'. Answers
a line of JSON each.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from distributed import Client, wait
from relief_module import passed_on

log = logging.getLogger("script")
PART = re.compile(r"part-(\d+)")
OPTIONS = {"root": Path("/data/in"), "retries": 3, "format": "parquet", "columns": list("abcdefgh")}


def process_file(options: dict[str, Any], path: Path) -> Path:
    """A function of ordinary size that needs nothing of its script."""
    seen = []
    for attempt in range(options["retries"]):
        try:
            name = path.name
            if name.endswith(options["format"]):
                seen.append((name, attempt))
            elif name.startswith("tmp"):
                raise ValueError(name)
            break
        except ValueError as error:
            if attempt == options["retries"] - 1:
                raise RuntimeError(f"gave up on {path}") from error
    return path if seen else path.parent


@dataclasses.dataclass(frozen=True)
class Config:
    root: Path = Path("/data/in")
    retries: int = 3
    format: str = "parquet"
    columns: tuple[str, ...] = tuple("abcdefgh")


class Validator:
    def __init__(self, config: Config) -> None:
        self.config = config

    def check(self, path: Path) -> bool:
        return bool(PART.search(str(path))) and path.suffix == f".{self.config.format}"

    def digest(self, path: Path) -> str:
        return hashlib.md5(str(path).encode()).hexdigest()


def validated(config: Config, path: Path) -> tuple[bool, str]:
    validator = Validator(config)
    return validator.check(path), validator.digest(path)


def script_task(config: Config, path: Path) -> Path | None:
    """One that needs classes, helpers and globals of its script."""
    for _ in range(config.retries):
        is_good, digest = validated(config, path)
        if is_good:
            return path
        log.debug("bad %s %s", path, digest)
    return None


def big_partial() -> Callable[..., Any]:
    files = [Path(f"/data/in/x{i}.parquet") for i in range(2000)]
    return partial(passed_on, {"root": Path("/data"), "files": files})


#: A new callable for each run, as in a new script.
MAPPED: dict[str, Callable[[], Callable[..., Any]]] = {
    "map-mod": lambda: partial(passed_on, OPTIONS),
    "map-main": lambda: partial(process_file, OPTIONS),
    "map-script": lambda: partial(script_task, Config()),
    "map-lambda": lambda: lambda path: path,
    "map-bigpartial": big_partial,
}


def run(client: Client, case: str, count: int) -> None:
    paths = [Path(f"/data/in/part-{i:06d}/file.parquet") for i in range(count)]
    if case == "submit-main":
        futures = [client.submit(partial(process_file, OPTIONS, p), pure=False) for p in paths]
    else:
        futures = client.map(MAPPED[case](), paths, pure=False)
    wait(futures)
    for future in futures:
        if future.status != "finished":
            raise RuntimeError(f"{case}: {future} is {future.status}")


def main() -> None:
    with Client(sys.argv[1]) as client:
        client.wait_for_workers(1)
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            case, count = line.split()
            start = time.perf_counter()
            run(client, case, int(count))
            print(json.dumps({"wall_s": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    main()
