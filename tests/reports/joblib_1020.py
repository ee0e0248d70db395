# joblib/joblib#1020: only a few tasks were sent at a time, so the cluster was never busy, and never
# grew.
# policy: {target: {duration: 5s}}
import time

from dask.distributed import Client, as_completed
from retold import workers

client, most, left = Client(), 0, iter(range(2, 30))
running = as_completed([client.submit(lambda i: time.sleep(1.5) or i, i) for i in range(2)])
for _ in running:
    most = max(most, len(workers(client)))
    for i in left:
        running.add(client.submit(lambda i: time.sleep(1.5) or i, i))
        break
assert most >= 2
