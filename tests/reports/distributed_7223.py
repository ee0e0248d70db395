# dask/distributed#7223: a task that has seceded waits for one that stays in the queue.
import time

from dask.distributed import Client, get_client, secede


def outer(i):
    inner = get_client().submit(lambda x: time.sleep(0.5) or x, i, pure=False)
    secede()
    return inner.result()


client = Client()
assert client.gather(client.map(outer, range(12))) == list(range(12))
