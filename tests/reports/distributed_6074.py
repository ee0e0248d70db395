# dask/distributed#6074: `as_completed` never ended when a worker restarted under it.
# redone: true
import os
import tempfile
import time
from pathlib import Path

from dask.distributed import Client, as_completed

once = Path(tempfile.mkdtemp()) / "once"


def fragile(i):
    time.sleep(0.3)
    if i == 5 and not once.exists():
        once.touch()
        os._exit(1)
    return i


client = Client()
assert sorted(f.result() for f in as_completed(client.map(fragile, range(12)))) == list(range(12))
