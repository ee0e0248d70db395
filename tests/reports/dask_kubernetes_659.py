# dask/dask-kubernetes#659: while new workers waited for a node those that worked were turned off.
# policy: {maxReplicas: 6}
# workers: {capacity: 2}
import time

from dask.distributed import Client
from retold import until, workers

client = Client()
futures = client.map(lambda i: time.sleep(1) or i, range(40))
until(lambda: len(workers(client)) == 2)
there = workers(client)
until(lambda: sum(f.done() for f in futures) >= 30)
assert workers(client) == there
assert client.gather(futures) == list(range(40))
