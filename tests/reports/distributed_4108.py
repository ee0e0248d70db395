# dask/distributed#4108: three long tasks brought ten workers.
# policy: {maxReplicas: 10}
import time

from dask.distributed import Client
from retold import hold, until, workers

client = Client()
go, tasks = hold(client, 3)
until(lambda: len(workers(client)) == 3)
time.sleep(6)
assert len(workers(client)) == 3
go.set()
client.gather(tasks)
