# ITISFoundation/osparc-simcore#6319: a worker that somebody retired counted for ever, and the next
# jobs never ran.
import time

from dask.distributed import Client
from retold import grow, workers

client = Client()
for _ in range(3):
    client.gather(client.map(lambda i: time.sleep(0.2) or i, range(3), pure=False))
    client.retire_workers(names=list(workers(client)), close_workers=True)
grow(client)
