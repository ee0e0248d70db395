# dask/distributed#2773: a published dataset has to outlive its client, and the workers that made
# it.
import dask.array as da
from dask.distributed import Client
from retold import grow, shrink

with Client() as client:
    grow(client)
    client.publish_dataset(ones=da.ones((500, 500), chunks=100).persist())
with Client() as client:
    shrink(client)
    assert client.get_dataset("ones").sum().compute() == 250_000
