# dask/distributed#6880: after the workers had gone finished tasks ran once more, and all workers
# came back.
import time

from dask.distributed import Client, wait
from retold import shrink

client = Client()
futures = client.map(lambda i: time.sleep(0.5) or bytes(100_000), range(24))
wait(futures)
shrink(client)
assert sum(map(len, client.gather(futures))) == 2_400_000
