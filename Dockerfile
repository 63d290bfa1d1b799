# `uce-edge serve` in a container, for models that lie in a folder of the host:
#   docker build --tag uce-edge .
#   docker run --rm --read-only --tmpfs /tmp --publish 127.0.0.1:8000:8000 --volume "$PWD/models:/models:ro" uce-edge /models/photos.onnx --reject auto
# The health check asks http on port 8000 inside the container: change the port with --publish. With --tls-cert, add
# --no-healthcheck.
FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE LICENSE-APACHE-2.0 NOTICE constraints.txt ./
COPY uce_edge uce_edge
COPY export export
COPY train train
RUN python -m venv /opt/uce-edge \
 && /opt/uce-edge/bin/pip install --no-cache-dir --constraint constraints.txt ".[cpu,serve]"

FROM python:3.12-slim
ENV ORT_DISABLE_TELEMETRY=1 PATH=/opt/uce-edge/bin:$PATH
RUN useradd --create-home --uid 10001 edge
COPY --from=build /opt/uce-edge /opt/uce-edge
USER 10001
EXPOSE 8000
# Not /ready: with UCE_EDGE_TOKEN set, only this path is open.
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/v2/health/live', timeout=4)"]
ENTRYPOINT ["uce-edge", "serve", "--host", "0.0.0.0", "--port", "8000"]
