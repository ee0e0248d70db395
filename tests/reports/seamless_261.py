# sjdv1982/seamless#261: jobs that were cancelled before they did any work counted as errors of
# their tasks.
# env: {DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES: 0}
import time

from dask.distributed import Client

client = Client()
for _ in range(4):
    burst = client.map(lambda i: time.sleep(1) or i, range(30), pure=False)
    time.sleep(1.5)
    client.cancel(burst)
    assert sum(client.gather(client.map(lambda i: i, range(50), pure=False))) == 1225
