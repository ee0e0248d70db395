# The operator's image: one wheel with both packages, in a virtual environment, run by uid 1000.
#
#   docker build -t dask-adaptive .
#
# Stages are cut so that a change of the sources rebuilds only the two last, small layers.
ARG BASE_IMAGE=python:3.11-slim

# What pyproject.toml asks for, as two lists. Its other lines may change without a new installation.
FROM ${BASE_IMAGE} AS requirements
COPY pyproject.toml /
RUN python3 -c 'import tomllib; p = tomllib.load(open("/pyproject.toml", "rb")); \
    open("/runtime.txt", "w").write("\n".join(p["project"]["dependencies"])); \
    open("/build.txt", "w").write("\n".join(p["build-system"]["requires"]))' \
 && touch -d @0 /runtime.txt /build.txt

FROM ${BASE_IMAGE} AS dependencies
COPY --from=requirements /runtime.txt /
RUN python3 -m venv /opt/venv \
 && /opt/venv/bin/pip install --no-cache-dir --quiet --requirement /runtime.txt

FROM ${BASE_IMAGE} AS wheel
COPY --from=requirements /build.txt /
RUN python3 -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir --quiet --requirement /build.txt
COPY . /src
RUN /opt/build/bin/pip wheel --no-cache-dir --quiet --no-deps --no-build-isolation --wheel-dir /wheel /src

FROM ${BASE_IMAGE}
RUN useradd --uid 1000 --user-group --no-create-home --home-dir /tmp dask-adaptive
COPY --from=dependencies /opt/venv /opt/venv
COPY --from=wheel /wheel /wheel
RUN /opt/venv/bin/pip install --no-cache-dir --quiet --no-deps --no-index /wheel/*.whl
# A read-only root works: nothing is written but to /tmp, and that only if something asks for it.
ENV PATH=/opt/venv/bin:$PATH HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 1000
ENTRYPOINT ["dask-adaptive"]
CMD ["run"]
