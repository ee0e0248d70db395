"""`dask-adaptive …`, also as `kubectl dask-adaptive …`."""
