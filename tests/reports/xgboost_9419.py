# dmlc/xgboost#9419: training waits for the workers that held the data when it was noted which do.
import time

from dask.distributed import Client, wait
from retold import grow

client = Client()
grow(client)
parts = client.map(lambda i: time.sleep(0.3) or bytes([i]) * 1000, range(12))
wait(parts)
holders = {str(key): where[0] for key, where in client.who_has(parts).items()}
time.sleep(8)
for part in parts:
    where = holders[str(part.key)]
    assert client.submit(len, part, workers=[where], allow_other_workers=False).result() == 1000
