# dask/distributed#4446: tasks that claim different amounts of a resource ended with all of them
# stuck.
# workers: {nthreads: 4, resources: {t-default: cpu=4}}
import time

from dask.distributed import Client

client, futures = Client(), []
for i in range(60):
    claim = {"cpu": (4, 2, 1)[i % 3]}
    futures.append(client.submit(lambda i: time.sleep(0.3) or i, i, resources=claim))
assert client.gather(futures) == list(range(60))
