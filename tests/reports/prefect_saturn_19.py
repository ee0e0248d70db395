# saturncloud/prefect-saturn#19: flows failed because workers were brought up and killed all the
# time.
# policy: {idleTimeout: 20s}
import time

from dask.distributed import Client
from retold import workers

client, seen = Client(), set()
for _ in range(5):
    client.gather(client.map(lambda i: time.sleep(0.5) or i, range(12), pure=False))
    seen |= workers(client)
    time.sleep(3)
assert len(seen) <= 3, seen
