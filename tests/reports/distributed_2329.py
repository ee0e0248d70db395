# dask/distributed#2329: as long as one task ran, all workers stayed.
import time

from dask.distributed import Client
from retold import hold, shrink

client = Client()
go, last = hold(client, 1)
assert len(client.gather(client.map(lambda i: time.sleep(1) or i, range(9)))) == 9
shrink(client, 1)
go.set()
client.gather(last)
