"""A backend behind HTTP: a `boughs serve` that runs somewhere, shared by many programs.

Requests carry segments, so that the tokens of a state are never tokenized again although this
side has no tokenizer (`docs/wire.md`). This module knows no programs.
"""

from __future__ import annotations

import contextlib
import ssl
import weakref
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import aiohttp
import msgspec

from boughs.lang import loop
from boughs.lang.errors import (
    BackendError,
    BoughsError,
    InvalidRequest,
    Overloaded,
    RequestTimeout,
    Unsupported,
    as_answered,
)
from boughs.lang.requests import EncodeRequest, GenerateRequest, PinRequest, Prompt, ScoreRequest
from boughs.lang.results import Chunk, Embedding, LeaseState, Scores
from boughs.lang.segments import Ids, Text, to_json
from boughs.lang.sse import Answers, read_events

MAX_CONNECTIONS = 256
CONNECT_SECONDS = 10.0
CLOSE_SECONDS = 2.0


class RuntimeEndpoint:
    """A server that runs programs' requests.

    Args:
        base_url: Where it listens (`http://127.0.0.1:30000`).
        api_key: Its key, if it wants one.
        verify: Whether to check its TLS certificate (by default yes), or a file of authorities.
        chat_template_name: Refused: a model's template comes with its tokenizer.
        timeout: Seconds without a byte after which a request fails.

    Attributes:
        base_url: As given, without a slash at its end.
        model_info: What the server said about its model.

    Raises:
        BackendError: Nothing answers there, or it is no such server.
        Unauthorized: The key is missing or wrong.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: bool | str | None = None,
        chat_template_name: str | None = None,
        timeout: float = 300.0,
    ) -> None:
        if not isinstance(base_url, str) or not base_url.startswith(("http://", "https://")):
            raise InvalidRequest(
                f"base_url: expected http://… or https://…, got {base_url!r:.80}", "base_url"
            )
        if chat_template_name is not None:
            raise Unsupported(
                "chat_template_name: the template is the one of the model's own tokenizer",
                "chat_template_name",
            )
        if api_key is not None and not (isinstance(api_key, str) and api_key.isprintable()):
            raise InvalidRequest(  # without the key: errors are logged
                "api_key: expected a string without line breaks and other control characters; one "
                "that was read from a file may end with a line break",
                "api_key",
            )
        if not isinstance(timeout, int | float) or not timeout > 0:
            raise InvalidRequest(f"timeout must be above 0, got {timeout!r:.40}", "timeout")
        self.base_url = base_url.rstrip("/")
        self._http = _Http(self.base_url, api_key, verify, timeout)
        self._finalizer = weakref.finalize(self, self._http.close)
        self.model_info: dict[str, Any] = loop.run(self._http.json("GET", "/get_model_info"))

    def get_model_name(self) -> str:
        """The model's path on the server."""
        return str(self.model_info["model_path"])

    def close(self) -> None:
        """Close the connections. Requests that run are aborted."""
        self._finalizer()

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        """The chunks of the answer; closing the iterator closes the connection, which aborts."""
        body: dict[str, Any] = {
            "segments": _segments(request.prompt),
            "sampling_params": msgspec.to_builtins(request.params, str_keys=True),
            "stream": True,
        }
        if request.rid is not None:
            body["rid"] = request.rid
        if request.heal:
            body["heal"] = True
        if request.return_logprob:
            body["return_logprob"] = True
            body["logprob_start_len"] = request.logprob_start_len
            body["top_logprobs_num"] = request.top_logprobs_num
            if request.token_ids_logprob:
                body["token_ids_logprob"] = request.token_ids_logprob
            body["return_text_in_logprobs"] = True
        answers = Answers()
        async with self._http.request("POST", "/generate", body) as response:
            async for event in read_events(response.content.iter_any()):
                yield answers.chunk(event)

    async def score(self, request: ScoreRequest) -> Scores:
        """The logprobs of each choice."""
        body = {
            "segments": _segments(request.prompt),
            "choices": request.choices,
            "unconditional": request.unconditional,
            "cache_salt": request.cache_salt,
            "priority": request.priority,
            "rid": request.rid,
        }
        given = {name: value for name, value in body.items() if value is not None}
        try:
            return msgspec.convert(await self._http.json("POST", "/score", given), Scores)
        except msgspec.ValidationError as error:
            raise BackendError(f"{self.base_url}/score: unexpected answer: {error}") from None

    async def encode(self, request: EncodeRequest) -> Embedding:
        """The prompt as a vector of the model's hidden states."""
        body = {
            "segments": _segments(request.prompt),
            "pooling": request.pooling,
            "normalize": request.normalize,
            "rid": request.rid,
            "cache_salt": request.cache_salt,
            "priority": request.priority,
            "timeout": request.timeout,
        }
        given = {name: value for name, value in body.items() if value is not None}
        answer = await self._http.json("POST", "/encode", given)
        try:
            made = msgspec.convert(answer, _Encoded)
        except msgspec.ValidationError as error:
            raise BackendError(f"{self.base_url}/encode: unexpected answer: {error}") from None
        return Embedding(
            rid=made.meta_info.id,
            vector=made.embedding,
            prompt_tokens=made.meta_info.prompt_tokens,
            cached_tokens=made.meta_info.cached_tokens,
        )

    async def pin(self, request: PinRequest) -> AsyncIterator[LeaseState]:
        """Keep a prompt cached on the server; the lease lives as long as the connection."""
        body = {
            "segments": _segments(request.prompt),
            "seconds": request.seconds,
            "cache_salt": request.cache_salt,
            "priority": request.priority,
        }
        given = {name: value for name, value in body.items() if value is not None}
        async with self._http.request("POST", "/pin", given) as response:
            async for event in read_events(response.content.iter_any()):
                try:
                    yield msgspec.convert(event, LeaseState)
                except msgspec.ValidationError as error:
                    raise BackendError(f"{self.base_url}/pin: unexpected: {error}") from None

    async def flush_cache(self, seconds: float = 0.0) -> None:
        """Forget every cached prefix; waits up to so many seconds for what runs."""
        await self._http.json("POST", f"/flush_cache?timeout={seconds:g}", {})

    async def tree(self, max_segments: int = 1000, max_tokens: int = 32) -> dict[str, Any]:
        """The server's radix tree as plain data, with each segment's text."""
        query = f"max_segments={max_segments}&max_tokens={max_tokens}"
        shown: dict[str, Any] = await self._http.json("GET", f"/tree?{query}")
        return shown

    async def post(self, path: str, body: object) -> Any:
        """The JSON that the server answers to a body; `docs/wire.md` has the paths."""
        return await self._http.json("POST", path, body)

    async def identity(self) -> str:
        """What the server says its answers depend on beside the request: model and settings.

        Raises:
            Unsupported: It says nothing of the kind.
        """
        info: dict[str, Any] = await self._http.json("GET", "/model_info?identity=1")
        if not isinstance(info.get("identity"), str):
            raise Unsupported(
                f"cache: {self.base_url} does not say which weights it serves, so that its answers "
                "cannot be told from another model's; run without cache=…",
                "cache",
            )
        return str(info["identity"])

    async def get_server_info(self) -> dict[str, Any]:
        """What the server is and how it does."""
        info: dict[str, Any] = await self._http.json("GET", "/server_info")
        return info


class _Http:
    """The connections to one server. All coroutines run on Boughs's loop."""

    def __init__(
        self, base_url: str, api_key: str | None, verify: bool | str | None, timeout: float
    ) -> None:
        self._base_url = base_url
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._ssl: bool | ssl.SSLContext = verify is not False
        if isinstance(verify, str):
            self._ssl = ssl.create_default_context(cafile=verify)
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    @contextlib.asynccontextmanager
    async def request(
        self, method: str, path: str, body: object = None
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        """A successful response; anything else becomes an error of ours.

        Leaving the block before the response was read closes the connection.
        """
        url = self._base_url + path
        data = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": "application/json"}
        try:
            session = self._open()
            async with session.request(method, url, data=data, headers=headers) as response:
                if response.status != 200:
                    raise _refused(url, response, await response.read())
                try:
                    yield response
                finally:
                    if not response.content.at_eof():
                        response.close()
        except BoughsError:
            raise
        except aiohttp.ConnectionTimeoutError:
            raise BackendError(f"cannot reach {self._base_url}: no answer") from None
        except TimeoutError:
            raise RequestTimeout(f"{url}: no answer within {self._timeout:g} s") from None
        except aiohttp.ClientConnectorError as error:
            raise BackendError(
                f"cannot reach {self._base_url}: {error.strerror or error}"
            ) from None
        except aiohttp.ClientError as error:
            raise BackendError(
                f"{url}: the connection broke before the answer was complete "
                f"({type(error).__name__}: {error})"
            ) from None

    async def json(self, method: str, path: str, body: object = None) -> Any:
        """The JSON of a successful response."""
        async with self.request(method, path, body) as response:
            raw = await response.read()
        try:
            return msgspec.json.decode(raw or b"{}")
        except msgspec.DecodeError:
            raise BackendError(f"{self._base_url}{path}: not JSON: {raw[:200]!r}") from None

    def close(self) -> None:
        """Close the connections, from any thread."""
        self._closed = True
        session, self._session = self._session, None
        if session is None:
            return
        closing = loop.submit(session.close())
        if not loop.on_loop():
            with contextlib.suppress(TimeoutError):  # at the latest the process's end closes them
                closing.result(CLOSE_SECONDS)

    def _open(self) -> aiohttp.ClientSession:
        if self._closed:
            raise BackendError(f"the endpoint {self._base_url} was closed")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS, ssl=self._ssl),
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=CONNECT_SECONDS, sock_read=self._timeout
                ),
            )
        return self._session


class _EncodedMeta(msgspec.Struct):
    id: str
    prompt_tokens: int
    cached_tokens: int


class _Encoded(msgspec.Struct):
    """The answer of `/encode`."""

    embedding: list[float]
    meta_info: _EncodedMeta


def _segments(prompt: Prompt) -> list[dict[str, Any]]:
    if isinstance(prompt, str):
        return [to_json(Text(prompt))]
    ids = [item for item in prompt if isinstance(item, int)]
    if ids:
        return [to_json(Ids(ids))]
    return [to_json(item) for item in prompt if not isinstance(item, int)]


def _refused(url: str, response: aiohttp.ClientResponse, raw: bytes) -> BoughsError:
    """The error that a server answered."""
    try:
        fault = msgspec.json.decode(raw)["error"]
        error = as_answered(fault)
    except (msgspec.DecodeError, LookupError, TypeError):
        text = raw[:500].decode("utf-8", "replace")
        return BackendError(f"{url} answered {response.status} {response.reason}: {text}")
    if isinstance(error, Overloaded):
        after = response.headers.get("Retry-After", "")
        error.retry_after = float(after) if after.isdigit() else error.retry_after
    return error
