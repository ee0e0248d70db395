# dask/distributed#3990: results were to be replicated while workers came and went, and that failed.
# policy: {recycle: {tasks: {max: 6}}}
import time

from dask.distributed import Client, wait

client, kept = Client(), []
for _ in range(8):
    kept += client.map(lambda i: time.sleep(0.2) or i, range(9), pure=False)
    wait(kept)
    client.replicate(kept, n=2)
assert client.gather(kept) == list(range(9)) * 8
