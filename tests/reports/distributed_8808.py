# dask/distributed#8808: adaptive scaling ended at the first error, and the cluster kept its size
# for good.
# redone: true
import os

from dask.distributed import Client
from distributed.scheduler import KilledWorker
from retold import grow, shrink

client = Client()
poison = client.submit(os._exit, 1)
assert isinstance(poison.exception(), KilledWorker)
grow(client)
shrink(client)
