# NCAR/ncar-jobqueue#8: a loop with a pause in it lost its workers in each pause, and had to wait
# for others.
# policy: {idleTimeout: 20s}
import time

from dask.distributed import Client
from retold import grow, workers

client = Client()
grow(client)
first = workers(client)
for _ in range(3):
    time.sleep(4)
    client.gather(client.map(lambda i: time.sleep(0.5) or i, range(9), pure=False))
assert workers(client) == first
