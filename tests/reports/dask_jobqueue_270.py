# dask/dask-jobqueue#270: when an allocation ended the future of its task was KilledWorker at once.
# policy: {recycle: {lifetime: {max: 8s, margin: 1s}}}
# env: {DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES: 0}
import time

from dask.distributed import Client

client = Client()
assert client.gather(client.map(lambda i: time.sleep(1.5) or i, range(24))) == list(range(24))
