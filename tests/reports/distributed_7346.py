# dask/distributed#7346: tasks for one worker waited for ever when it had been removed.
import time

from dask.distributed import Client
from retold import grow, workers

client = Client()
grow(client)
first, *others = client.scheduler_info(n_workers=-1)["workers"]
pinned = client.map(lambda i: time.sleep(1) or i, range(8), workers=[first])
assert client.gather(pinned) == list(range(8))
assert len(workers(client)) == 1
