# prefect-archive/prefect-dask#59: with adaptive scaling tasks stayed in state running for ever.
import time

from dask.distributed import Client, as_completed

client = Client()
running = as_completed(client.map(lambda i: time.sleep(0.2) or i, range(12)), with_results=True)
results, depth = [], 0
for _, value in running:
    results.append(value)
    if value < 36:
        running.add(client.submit(lambda i: time.sleep(0.2) or i + 12, value))
assert sorted(results) == list(range(48))
