# dask/dask-kubernetes#930: the number of workers fell below the minimum.
# policy: {minReplicas: 2}
import time

from dask.distributed import Client
from retold import grow, shrink, workers

client = Client()
grow(client, 3)
shrink(client, 2)
for _ in range(10):
    assert len(workers(client)) == 2
    time.sleep(0.6)
