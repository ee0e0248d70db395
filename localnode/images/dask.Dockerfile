FROM localhost/python:3.11
ARG DASK
# EXTRA pins what an old release needs and does not say itself (numpy<2, …).
ARG EXTRA
RUN python3 -m venv /opt/venv && /opt/venv/bin/pip install --no-cache-dir -q distributed==${DASK} dask[array,dataframe]==${DASK} bokeh ${EXTRA}
ENV PATH=/opt/venv/bin:$PATH
RUN useradd -u 1000 -m dask
USER 1000
