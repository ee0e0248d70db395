# PrefectHQ/prefect#9014: tasks crashed when a worker was retired while they ran.
# policy: {recycle: {lifetime: {max: 6s, margin: 1s}}}
import time

from dask.distributed import Client, as_completed

client = Client()
done = [f.status for f in as_completed(client.map(lambda i: time.sleep(2) or i, range(12)))]
assert done == ["finished"] * 12
