# dask/distributed#3526: tasks of workers that were scaled down counted as suspicious, up to
# KilledWorker.
# env: {DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES: 0}
import time

from dask.distributed import Client
from retold import shrink

client = Client()
for _ in range(3):
    client.gather(client.map(lambda i: time.sleep(0.3) or i, range(20), pure=False))
    shrink(client)
