# dask/distributed#8999: tasks that were given semaphores brought the scheduler, and then the
# cluster, down.
import time

from dask.distributed import Client, Semaphore
from retold import shrink

client = Client()
leases = [Semaphore(max_leases=2, name=f"lease-{i}") for i in range(4)]


def use(i, leases):
    with leases[i % 4]:
        return time.sleep(0.3) or i


for _ in range(2):
    assert client.gather(client.map(use, range(30), leases=leases, pure=False)) == list(range(30))
    shrink(client)
