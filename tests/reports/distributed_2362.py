# dask/distributed#2362: a lock whose holder's worker had gone was never released.
import time

from dask.distributed import Client, Lock
from retold import shrink


def write(i):
    with Lock("file"):
        time.sleep(0.2)
    return time.sleep(0.5) or i


client = Client()
for _ in range(2):
    assert len(client.gather(client.map(write, range(15), pure=False))) == 15
    shrink(client)
