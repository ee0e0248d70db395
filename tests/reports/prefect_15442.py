# PrefectHQ/prefect#15442: tasks that were done ran again when a worker died after them.
# redone: true
import os
import tempfile
import time
from pathlib import Path

from dask.distributed import Client, fire_and_forget
from retold import until

client, folder = Client(), Path(tempfile.mkdtemp())


def record(i):
    (folder / f"{i}-{time.monotonic_ns()}").touch()


def die():
    if not (folder / "died").exists():
        (folder / "died").touch()
        os._exit(1)


for i in range(9):
    fire_and_forget(client.submit(record, i))
until(lambda: len(list(folder.iterdir())) == 9)
client.submit(die).result()
assert len(list(folder.iterdir())) == 10
