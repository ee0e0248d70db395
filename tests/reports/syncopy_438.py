# esi-neuroscience/syncopy#438: a library waits for its workers before it sends any work: for ever.
from dask.distributed import Client
from retold import until

client = Client()
until(lambda: not client.nthreads())
client.wait_for_workers(3, timeout=240)
assert client.submit(sum, [1, 2]).result() == 3
