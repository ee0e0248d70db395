# dask/distributed#8579: adaptive scaling retired a participant of a P2P shuffle, which began anew.
import dask.dataframe as dd
import pandas as pd
from dask.distributed import Client
from retold import grow

client = Client()
grow(client)
frame = pd.DataFrame({"key": range(20_000), "value": 1.0})
shuffled = dd.from_pandas(frame, npartitions=12).shuffle("key", shuffle_method="p2p")
slow = shuffled.map_partitions(
    lambda part: __import__("time").sleep(0.5) or part, meta=frame.head(0)
)
assert slow.value.sum().compute() == 20_000
