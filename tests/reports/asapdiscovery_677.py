# asapdiscovery/asapdiscovery#677: when some tasks failed, finished work of others was dropped.
import time

from dask.distributed import Client, wait
from retold import shrink


def dock(i):
    time.sleep(0.3)
    return bytes(10_000) if i % 4 else 1 / 0


client = Client()
futures = client.map(dock, range(24))
wait(futures)
shrink(client)
assert len(client.gather(futures, errors="skip")) == 18
