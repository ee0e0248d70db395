# PrefectHQ/prefect#5483: a burst of thousands of short tasks stayed on the one worker that was
# there.
import time

from dask.distributed import Client
from retold import until, workers

client = Client()
short = client.map(lambda i: time.sleep(0.02) or i, range(3000))
until(lambda: len(workers(client)) == 3 or all(f.done() for f in short))
assert len(workers(client)) == 3
assert sum(client.gather(short)) == sum(range(3000))
