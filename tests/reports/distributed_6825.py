# dask/distributed#6825: a task that no worker can run kept the whole cluster up for a weekend.
import time

from dask.distributed import Client
from retold import shrink

client = Client()
impossible = client.submit(sum, [1], resources={"quantum": 1})
client.gather(client.map(lambda i: time.sleep(0.5) or i, range(20)))
shrink(client, 0)
assert not impossible.done()
