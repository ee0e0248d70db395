# dask/distributed#3610: on an adaptive cluster nobody could ask for workers before the work comes.
from dask.distributed import Client
from retold import shrink, until, workers

from dask_adaptive_agent import want

client = Client()
with want(3):
    until(lambda: len(workers(client)) == 3)
shrink(client)
