# The server's image. Serving does not need PyTorch, so the image does not contain it.
#
#   docker build -f deploy/docker/server.Dockerfile -t puf-server .
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
RUN python -m venv /opt/puf
COPY deploy/docker/requirements.txt /src/
RUN /opt/puf/bin/pip install --no-cache-dir --no-deps --require-hashes -r /src/requirements.txt
COPY deploy/docker/build-requirements.txt /src/
RUN python -m venv /opt/build && /opt/build/bin/pip install --no-cache-dir --require-hashes -r /src/build-requirements.txt
COPY pyproject.toml README.md LICENSE /src/
COPY common /src/common
COPY server /src/server
# Only the server's code. The package also lists the commands of other roles, which are removed.
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation -w /src/dist /src \
 && /opt/puf/bin/pip install --no-cache-dir --no-deps --target /opt/own /src/dist/*.whl \
 && rm /opt/own/bin/puf-client /opt/own/bin/puf-lab \
 && rm -rf /opt/puf/lib/python3*/site-packages/pip /opt/puf/lib/python3*/site-packages/setuptools

FROM ${BASE}
ARG VERSION=0.1.0
ARG REVISION=
LABEL org.opencontainers.image.title="puf-server" \
      org.opencontainers.image.description="Aggregation server of a federation that can forget" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /var/lib/puf --shell /usr/sbin/nologin puf \
 && install -d -o puf -g puf -m 0700 /var/lib/puf /var/lib/puf/state /var/lib/puf/authority /var/lib/puf/tls \
    /var/lib/puf/dashboard \
 && install -d -o puf -g puf -m 0755 /var/lib/puf/model /var/lib/puf/enrolment
COPY --from=build /opt/puf /opt/puf
COPY --from=build /opt/own /opt/own
COPY deploy/docker/setup /usr/local/bin/puf-setup
ENV PATH=/opt/own/bin:/opt/puf/bin:$PATH PYTHONPATH=/opt/own PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    PUF_STATE=/var/lib/puf/state
USER puf
WORKDIR /var/lib/puf
VOLUME /var/lib/puf/state
EXPOSE 7300
# Calls the gRPC health service on the operator port. It reports SERVING after the state is recovered.
HEALTHCHECK --interval=10s --timeout=10s --start-period=30s --retries=3 CMD ["puf-server", "health"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["puf-server"]
CMD ["serve"]
