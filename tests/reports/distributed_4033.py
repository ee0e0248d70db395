# dask/distributed#4033: tasks that nobody waits for have to be done though their client has gone.
import tempfile
import time
from pathlib import Path

from dask.distributed import Client, fire_and_forget
from retold import until

folder = Path(tempfile.mkdtemp())


def record(i):
    time.sleep(0.5)
    (folder / str(i)).touch()


with Client() as client:
    fire_and_forget(client.map(record, range(16)))
until(lambda: len(list(folder.iterdir())) == 16)
