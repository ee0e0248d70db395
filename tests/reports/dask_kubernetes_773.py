# dask/dask-kubernetes#773: 31 workers came where 20 were the most.
import time

from dask.distributed import Client
from retold import workers

client = Client()
futures = client.map(lambda i: time.sleep(0.2) or i, range(150))
while not all(f.done() for f in futures):
    assert len(workers(client)) <= 3
    time.sleep(0.1)
