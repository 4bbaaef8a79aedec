# The client's image. The packages for training are an argument, so that the same file builds for CPU and CUDA.
#
#   docker build -f deploy/docker/client.Dockerfile -t puf-client .                    PyPI's PyTorch, with CUDA
#   docker build ... --build-arg TORCH_INDEX=ADDRESS .                                 PyTorch from another index, e.g. for CPU
#   docker build ... --build-arg TRAIN="torch==2.13.0 scikit-learn" .                  only what the model needs; wheels in
#                                                                                      deploy/docker/wheels are preferred
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
RUN python -m venv /opt/puf
COPY deploy/docker/requirements.txt /src/
RUN /opt/puf/bin/pip install --no-cache-dir --no-deps --require-hashes -r /src/requirements.txt
ARG TRAIN="torch torchvision timm scikit-learn safetensors"
ARG TORCH_INDEX=
COPY deploy/docker/wheels /src/wheels
COPY requirements.txt /src/pinned.txt
# Versions are those of requirements.txt unless TRAIN states one. Hashes are removed because other builds have other hashes.
RUN sed -e '/^ *--hash/d' -e 's/ *\\$//' /src/pinned.txt > /src/constraints.txt \
 && for wanted in ${TRAIN}; do case "${wanted}" in *==*) sed -i "/^${wanted%%==*}==/d" /src/constraints.txt;; esac; done \
 && /opt/puf/bin/pip install --no-cache-dir --find-links /src/wheels ${TORCH_INDEX:+--index-url "${TORCH_INDEX}"} \
      -c /src/constraints.txt $(printf '%s\n' ${TRAIN} | grep '^torch') \
 && /opt/puf/bin/pip install --no-cache-dir -c /src/constraints.txt ${TRAIN}
COPY deploy/docker/build-requirements.txt /src/
RUN python -m venv /opt/build && /opt/build/bin/pip install --no-cache-dir --require-hashes -r /src/build-requirements.txt
COPY pyproject.toml README.md LICENSE /src/
COPY common /src/common
COPY client /src/client
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation -w /src/dist /src \
 && /opt/puf/bin/pip install --no-cache-dir --no-deps --target /opt/own /src/dist/*.whl \
 && rm /opt/own/bin/puf-server /opt/own/bin/puf-lab \
 && rm -rf /opt/puf/lib/python3*/site-packages/pip

FROM ${BASE}
ARG VERSION=0.1.0
ARG REVISION=
LABEL org.opencontainers.image.title="puf-client" \
      org.opencontainers.image.description="Client of a federation that can forget" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /var/lib/puf --shell /usr/sbin/nologin puf \
 && install -d -o puf -g puf -m 0700 /var/lib/puf /var/lib/puf/clients /run/puf \
 && install -d -o puf -g puf -m 0755 /var/lib/puf/model /var/lib/puf/enrolment
# First gigabytes that rarely change, then kilobytes that change with every commit.
COPY --from=build /opt/puf /opt/puf
COPY --from=build /opt/own /opt/own
COPY deploy/docker/replica.py /opt/own/replica.py
ENV PATH=/opt/own/bin:/opt/puf/bin:$PATH PYTHONPATH=/opt/own PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    PUF_CONFIG=/run/puf/client.toml PUF_STATE=/var/lib/puf/clients PUF_RECEIPT_DIR=/var/lib/puf/clients/receipts
RUN touch /run/puf/client.toml && chown puf:puf /run/puf/client.toml
USER puf
WORKDIR /var/lib/puf
VOLUME /var/lib/puf/clients
STOPSIGNAL SIGTERM
# No health check: the server notices a client without heartbeats and shows it in its metrics.
ENTRYPOINT ["python", "/opt/own/replica.py"]
