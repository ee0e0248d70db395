# dask/distributed#3154: when all workers were lost at once no others came.
# redone: true
import os
import time

from dask.distributed import Client
from retold import until


async def die():
    os._exit(1)


client = Client()
slow = client.submit(lambda: time.sleep(5) or os.getpid())
until(lambda: any(client.processing().values()))
client.run(die, wait=False)
assert slow.result() > 0
