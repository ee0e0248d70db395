# dask/distributed#3627: long tasks whose duration was not known yet did not make the cluster grow.
from dask.distributed import Client
from retold import grow

grow(Client(), 3)
