"""Adaptive scaling for Dask clusters in which no work is redone: the operator's own process."""

#: Prefix of the API group, of annotations, labels and finalizers. Stands nowhere else in the code.
DOMAIN = "dask-adaptive.dev"
