# dask/dask-jobqueue#597: a job was to end after one task, and the next task was caught in its end.
# policy: {recycle: {tasks: {max: 1, exact: true}}}
import os
import time

from dask.distributed import Client

client = Client()
pids = client.gather(client.map(lambda i: time.sleep(0.5) or os.getpid(), range(6)))
assert len(set(pids)) == 6, pids
