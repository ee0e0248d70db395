# dask/distributed#1874: a worker with a broken disk failed each task that it was given, until its
# retries were used up.
# policy: {recycle: {failures: {patterns: ["*No space left*"]}}, minReplicas: 2}
import os
import time

from dask.distributed import Client
from retold import until, workers

client = Client()
until(lambda: len(workers(client)) == 2)
broken = sorted(workers(client))[0]


def write(i):
    time.sleep(0.2)
    if os.environ["DASK_WORKER_NAME"] == broken:
        raise OSError("No space left on device")
    return i


assert client.gather(client.map(write, range(20), retries=5)) == list(range(20))
until(lambda: broken not in workers(client))
