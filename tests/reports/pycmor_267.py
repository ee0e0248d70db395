# esm-tools/pycmor#267: workers were cancelled between quick first steps and the step that has all
# the work.
# policy: {idleTimeout: 20s}
import time

from dask.distributed import Client
from retold import grow, workers

client = Client()
grow(client, 2)
before = workers(client)
for step in range(4):
    client.submit(lambda i: i, step).result()
    time.sleep(1)
client.gather(client.map(lambda i: time.sleep(1) or i, range(6)))
assert before <= workers(client)
