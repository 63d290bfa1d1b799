"""The ASGI application: Open Inference Protocol, `/answer` for encoded images, `/metrics`."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from uce_edge import __version__
from uce_edge.audit.decision_log import Audit
from uce_edge.errors import ImageError, UceEdgeError, UsageError, expected
from uce_edge.images import loader
from uce_edge.metadata import ImageSpec
from uce_edge.runtime.answers import Answer, refused
from uce_edge.runtime.answers import Request as Options
from uce_edge.serve import protocol
from uce_edge.serve.access import LIVE, Guard, HostNames
from uce_edge.serve.drift_monitor import DriftMonitor
from uce_edge.serve.model_host import Hosted, Hosts, Limits, parse_reject
from uce_edge.serve.prometheus_metrics import CONTENT_TYPE, Gauges
from uce_edge.serve.request_batching import BusyError, Pixels, StoppingError
from uce_edge.serve.workers import Workers

_BODIES = 8
"""Bodies of the largest size that may be in memory at once."""
_DECODERS = 2 * (os.cpu_count() or 1)
"""The number of images and JSON documents that are decoded at once."""


class Rejection(Exception):
    """A request that gets an HTTP status other than 200, with a message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Service:
    """The endpoints."""

    def __init__(
        self,
        hosts: Hosts,
        limits: Limits,
        gauges: Gauges,
        audit: Audit | None = None,
        monitor: DriftMonitor | None = None,
    ) -> None:
        """Serve models.

        Args:
            hosts: The models.
            limits: The largest accepted requests.
            gauges: The metrics for Prometheus.
            audit: A log of decisions.
            monitor: A drift monitor of the answers.
        """
        self._hosts, self._limits, self._gauges, self._audit = hosts, limits, gauges, audit
        self._monitor = monitor
        self._decoders, self._recorder = Workers(_DECODERS, "decode"), Workers(1, "log")
        self._ready = False
        self._held = 0
        """Bytes of the bodies of all requests that are being handled."""

    def application(self, token: str | None = None, names: HostNames | None = None) -> Starlette:
        """Build the ASGI application.

        Args:
            token: The token that clients must send; None for none.
            names: The accepted host names; None for any.
        """
        routes = [
            Route("/v2", self._server),
            Route(LIVE, self._live),
            Route("/v2/health/ready", self._server_ready),
            Route("/metrics", self._metrics),
        ]
        for prefix in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
            routes += [
                Route(prefix, self._model),
                Route(f"{prefix}/ready", self._model_ready),
                Route(f"{prefix}/infer", partial(self._timed, "infer", self._infer), methods=["POST"]),
                Route(f"{prefix}/answer", partial(self._timed, "answer", self._answer), methods=["POST"]),
            ]
        guard = [Middleware(Guard, names=names, secret=token)]
        handlers = {404: _not_found, 405: _wrong_method}
        return Starlette(routes=routes, lifespan=self._lifespan, middleware=guard, exception_handlers=handlers)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self._ready = True
        try:
            yield
        finally:
            self._ready = False
            await asyncio.gather(*(hosted.batcher.close() for hosted in self._hosts))

    def close(self) -> None:
        """Wait until all decisions are logged. Clients have their answers, so no other work is needed."""
        self._decoders.close(wait=False)
        self._recorder.close()

    @property
    def busy(self) -> bool:
        """Whether a thread is still at work."""
        return self._decoders.busy or any(hosted.batcher.busy for hosted in self._hosts)

    def _is_stuck(self, seconds: float) -> bool:
        """Whether a kind of work has made no progress for this long."""
        workers = [self._decoders, self._recorder, *(hosted.batcher for hosted in self._hosts)]
        return any(worker.stuck(seconds) for worker in workers)

    async def _server(self, _: Request) -> Response:
        return JSONResponse({"name": "uce-edge", "version": __version__, "extensions": ["binary_tensor_data"]})

    async def _live(self, _: Request) -> Response:
        live = not self._is_stuck(2 * self._limits.timeout)  # a long call may still end
        return JSONResponse({"live": live}, 200 if live else 503)

    async def _server_ready(self, _: Request) -> Response:
        ready = self._ready and not self._is_stuck(self._limits.timeout)
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    async def _metrics(self, _: Request) -> Response:
        waiting: dict[str, int] = {}
        for hosted in self._hosts:
            waiting[hosted.named.name] = waiting.get(hosted.named.name, 0) + hosted.batcher.waiting
        return Response(self._gauges.text(waiting), headers={"Content-Type": CONTENT_TYPE})

    async def _model(self, request: Request) -> Response:
        try:
            hosted = self._find(request)
        except Rejection as rejection:
            return _error(rejection.status, str(rejection))
        return JSONResponse(hosted.describe(self._hosts.versions(hosted.named.name)))

    async def _model_ready(self, request: Request) -> Response:
        try:
            hosted = self._find(request)
        except Rejection as rejection:
            return _error(rejection.status, str(rejection))
        workers = (self._decoders, self._recorder, hosted.batcher)
        ready = self._ready and not any(worker.stuck(self._limits.timeout) for worker in workers)
        return JSONResponse({"name": hosted.named.name, "ready": ready}, 200 if ready else 503)

    async def _timed(
        self, endpoint: str, handle: Callable[[Hosted, Request], Awaitable[Response]], request: Request
    ) -> Response:
        """Handle a request to a model: errors become responses, and every response is counted."""
        start, model = time.perf_counter(), ""
        try:
            hosted = self._find(request)
            model = hosted.named.name
            async with asyncio.timeout(self._limits.timeout):
                response = await handle(hosted, request)
        except Rejection as rejection:
            response = _error(rejection.status, str(rejection))
        except UsageError as error:
            response = _error(400, str(error))
        except UceEdgeError as error:
            response = _error(500, str(error))
        except TimeoutError:
            response = _error(504, f"No answer within {self._limits.timeout:g} s. Try again with fewer passes.")
        except (BusyError, StoppingError) as error:
            reason = "is shutting down" if isinstance(error, StoppingError) else "has too many requests waiting"
            response = _error(503, f"This server {reason}. Try again later.", {"Retry-After": "1"})
        except ClientDisconnect:
            response = Response(status_code=499)  # for the metrics: the client has left
        finally:
            self._held -= getattr(request.state, "held", 0)
        self._gauges.request(model, endpoint, response.status_code, time.perf_counter() - start)
        return response

    async def _infer(self, hosted: Hosted, request: Request) -> Response:
        body, header = await self._body(request), request.headers.get(protocol.HEADER)
        infer_request = await self._decoders.run(protocol.read, body, header)
        outputs = await hosted.infer(infer_request)
        document: dict[str, Any] = {"model_name": hosted.named.name, "model_version": str(hosted.named.version)}
        if infer_request.id is not None:
            document["id"] = infer_request.id
        try:
            binary = protocol.binary_choice(infer_request, list(outputs))
            body, length = await self._decoders.run(protocol.write, document, outputs, binary)
        except ValueError:  # JSON has no NaN
            raise UceEdgeError(
                f"The model {hosted.named.name} returned numbers that are not finite. Request binary outputs to see "
                "them, or export it again with --precision fp32.",
                "model.not-finite",
                model=hosted.named.name,
            ) from None
        if length is None:
            return Response(body, media_type="application/json")
        return Response(body, headers={protocol.HEADER: str(length)}, media_type="application/octet-stream")

    async def _answer(self, hosted: Hosted, request: Request) -> Response:
        options, path = self._options(hosted, request), request.query_params.get("name", "request")
        content = await self._body(request)
        try:
            pixels = await self._decoders.run(_pixels, content, hosted.model.metadata.image)
            answer = await hosted.answer(pixels, options, path)
        except ImageError as error:
            answer = refused(path, str(error), hosted.model.reject_rule(options.reject))
        answer = replace(answer, content=content)
        if self._audit is not None or self._monitor is not None:
            await self._recorder.run(self._record, answer, options)
        if answer.prediction is not None:
            self._gauges.decision(hosted.named.name, answer.prediction)
        return JSONResponse(answer.as_dict(), 200 if answer.ok else 422)

    def _record(self, answer: Answer, options: Options) -> None:
        """Log an answer and pass it to the monitor."""
        if self._audit is not None:
            self._audit.add(answer, options)
        if self._monitor is not None:
            self._monitor.add(answer)

    def _options(self, hosted: Hosted, request: Request) -> Options:
        query = request.query_params
        unknown = set(query) - {"samples", "seed", "reject", "name"}
        if unknown:
            rule = "some of samples, seed, reject and name"
            raise UsageError(expected("the query", rule, sorted(unknown), "For example: ?reject=auto"), "request.query")
        samples, seed = (_whole(query.get(name), name) for name in ("samples", "seed"))
        reject = parse_reject(query["reject"]) if "reject" in query else hosted.reject
        hosted.model.reject_rule(reject)
        hosted.model.seeds(samples, seed or 0)
        return Options(samples, seed or 0, reject)

    async def _body(self, request: Request) -> bytes:
        """Read the body, up to the size limit."""
        too_long = Rejection(413, f"A request may have at most {self._limits.max_body} bytes. Send fewer images.")
        announced = request.headers.get("content-length", "0")
        if announced.isdecimal() and int(announced[:20]) > self._limits.max_body:
            raise too_long
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            request.state.held = size
            self._held += len(part)
            if size > self._limits.max_body:
                raise too_long
            if self._held > _BODIES * self._limits.max_body:
                raise BusyError
            parts.append(part)
        if not size:
            message = "The request has no body. Send a tensor to /infer, or an image file to /answer."
            raise UsageError(message, "request.empty")
        return b"".join(parts)

    def _find(self, request: Request) -> Hosted:
        name, version = request.path_params["name"], request.path_params.get("version")
        hosted = self._hosts.find(name, version)
        if hosted is None:
            model = name if version is None else f"{name}, version {version}"
            raise Rejection(404, f"There is no model {model}. This server has: {', '.join(self._hosts.names())}.")
        return hosted


def _pixels(content: bytes, spec: ImageSpec) -> Pixels:
    """Decode an image. Notes about it are dropped, because clients could fill a log with them."""
    return loader.load(content, spec, "The image data", note=lambda _: None)


def _whole(text: str | None, name: str) -> int | None:
    if text is not None and not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise UsageError(expected(f"`{name}`", "a whole number", text, f"For example: ?{name}=25"))
    return None if text is None else int(text)


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    sendable = message.encode(errors="replace").decode()  # a tensor name in JSON may have a lone surrogate
    return JSONResponse({"error": sendable}, status, headers)


def _not_found(request: Request, _: Exception) -> Response:
    return _error(404, f"There is no {request.url.path}. The models are under /v2/models/NAME.")


def _wrong_method(request: Request, _: Exception) -> Response:
    return _error(405, f"{request.url.path} does not accept {request.method}.")
