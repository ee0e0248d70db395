# dask/distributed#1606: retiring a worker made its tasks suspicious, so that a few retirements
# failed them.
# policy: {recycle: {tasks: {max: 3}}}
# env: {DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES: 0}
import time

from dask.distributed import Client

client = Client()
assert len(client.gather(client.map(lambda i: time.sleep(0.4) or i, range(20)))) == 20
