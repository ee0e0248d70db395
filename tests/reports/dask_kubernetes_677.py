# dask/dask-kubernetes#677: an idle cluster was told to scale down every five seconds, and never
# did.
from dask.distributed import Client
from retold import shrink

client = Client()
assert client.submit(sum, [1, 2]).result() == 3
shrink(client, 0)
assert client.submit(sum, [2, 3]).result() == 5
