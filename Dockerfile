# The operator's image: one wheel with both packages, in a virtual environment, run by uid 1000 or any other.
#
#   docker build -t dask-adaptive .
#
# `make dist` builds it for a release: the same commit on the same base gives the same bytes. So pip compiles nothing
# (its .pyc files hold the time), and the last stage only copies. A change of the sources makes only its last layer anew.
ARG BASE_IMAGE=python:3.11-slim-trixie@sha256:db3ff2e1800a8581e2c48a27c3995339d47bdf046da21c7627accd3d51053a93

FROM ${BASE_IMAGE} AS build
RUN python3 -m venv /opt/build && python3 -m venv --without-pip /opt/venv

FROM build AS dependencies
COPY requirements.lock /
RUN /opt/build/bin/pip --python /opt/venv/bin/python install --no-cache-dir --no-compile --quiet --no-deps \
      --require-hashes --requirement /requirements.lock \
 && PYTHONHASHSEED=0 python3 -m compileall -q --invalidation-mode unchecked-hash /opt/venv/lib

FROM build AS ours
COPY build.lock /
RUN /opt/build/bin/pip install --no-cache-dir --quiet --no-deps --require-hashes --requirement /build.lock
COPY . /src
RUN /opt/build/bin/pip wheel --no-cache-dir --quiet --no-deps --no-build-isolation --wheel-dir /wheel /src \
 && /opt/build/bin/pip --python /opt/venv/bin/python install --no-compile --quiet --no-deps --no-index \
      --no-warn-script-location --root /ours /wheel/*.whl \
 && PYTHONHASHSEED=0 python3 -m compileall -q --invalidation-mode unchecked-hash -s /ours -p / /ours/opt/venv/lib

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title=dask-adaptive \
      org.opencontainers.image.description="Adaptive scaling for Dask on Kubernetes that reruns no task because of a scaling decision" \
      org.opencontainers.image.licenses=BSD-3-Clause
COPY --from=dependencies /opt/venv /opt/venv
COPY --from=ours /ours /
# A read-only root works: nothing is written but to /tmp, and that only if something asks for it. USER: kopf asks for the
# name of whoever runs it, and the uid of a pod need not have one.
ENV PATH=/opt/venv/bin:$PATH HOME=/tmp USER=dask-adaptive PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 1000
ENTRYPOINT ["dask-adaptive"]
CMD ["run"]
