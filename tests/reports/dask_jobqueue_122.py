# dask/dask-jobqueue#122: jobs with expiring allocations took the results with them that nobody had
# fetched.
# policy: {recycle: {lifetime: {max: 8s, margin: 2s}}}
import time

from dask.distributed import Client, wait

client = Client()
squares = client.map(lambda i: time.sleep(1) or i**2, range(20))
wait(squares)
assert client.gather(squares) == [i**2 for i in range(20)]
