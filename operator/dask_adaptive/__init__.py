"""The operator's own process: scales Dask clusters, and reruns no task by its decisions."""

#: Prefix of the API group, of annotations, labels and finalizers. Stands nowhere else in the code.
DOMAIN = "dask-adaptive.dev"
