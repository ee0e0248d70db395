# dask/distributed#6679: all workers were killed at once while a job ran.
# policy: {minReplicas: 1}
import time

from dask.distributed import Client
from retold import workers

client = Client()
client.submit(sum, [1]).result()
futures = client.map(lambda i: time.sleep(0.5) or i, range(24))
while not all(f.done() for f in futures):
    assert workers(client)
    time.sleep(0.1)
