FROM localhost/python:3.11
ARG DASK_KUBERNETES
RUN python3 -m venv /opt/venv && /opt/venv/bin/pip install --no-cache-dir -q dask-kubernetes==${DASK_KUBERNETES}
ENV PATH=/opt/venv/bin:$PATH
# The chart runs it as uid 1000, and kopf wants that user to have a name.
RUN useradd -u 1000 -m dask
USER 1000
ENTRYPOINT ["kopf", "run", "-m", "dask_kubernetes.operator.controller", "--verbose", "--all-namespaces"]
