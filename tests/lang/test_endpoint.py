"""The endpoint against a server that speaks the wire, rightly and wrongly; and against ours."""

import asyncio
import gc
import json
import subprocess
import sys
import threading
import time

import pytest
from aiohttp import web

import boughs
from boughs.lang import loop
from boughs.lang.errors import (
    BackendError,
    InvalidRequest,
    NotFound,
    Overloaded,
    RequestTimeout,
    Unauthorized,
    Unsupported,
)
from boughs.lang.requests import EncodeRequest, GenerateRequest, ScoreRequest
from boughs.lang.results import collect
from boughs.lang.sampling import SamplingParams
from boughs.lang.segments import Content, Ids, Role, Text
from boughs.runtime.messages import Limits
from boughs.runtime.server.app import make_app
from boughs.runtime.server.config import ServerConfig
from boughs.testing import MockBackend

pytestmark = pytest.mark.timeout(60)


class Server:
    """An aiohttp application on a free port, in a thread of its own."""

    def __init__(self, app):
        self._app = app
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        assert started.wait(20)

    def _run(self, started):
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        started.set()
        self._loop.run_forever()

    async def _start(self):
        self._runner = web.AppRunner(self._app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    def stop(self):
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)


class Served(MockBackend):
    """A mock backend with what our server asks of an engine beside the requests."""

    model_path = "/models/mock"
    chat = tokenizer = None
    limits = Limits(
        model_path="/models/mock", vocab_size=0x110000, context_length=4096, pool_tokens=8192,
        page_size=16, num_pages=513, eos_token_ids=(0,), attention_backend="mock", dtype="float32",
    )  # fmt: skip

    async def health(self):
        return True

    async def identity(self):
        return "mock"

    def abort(self, rid):
        return False

    def abort_all(self):
        return 0


@pytest.fixture
def serve():
    """Starts applications; they end with the test."""
    servers = []

    def start(app):
        servers.append(Server(app))
        return servers[-1].url

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def connect():
    """Opens endpoints; they are closed with the test."""
    endpoints = []

    def open_endpoint(*args, **kwargs):
        endpoints.append(boughs.RuntimeEndpoint(*args, **kwargs))
        return endpoints[-1]

    yield open_endpoint
    for endpoint in endpoints:
        endpoint.close()


def double(handler=None, path="/generate", info='{"model_path": "m"}'):
    """A server of which one path is `handler`'s."""

    async def get_info(_):
        return web.Response(text=info)

    app = web.Application()
    app.router.add_get("/get_model_info", get_info)
    app.router.add_get("/model_info", get_info)
    if handler is not None:
        app.router.add_route("*", path, handler)
    return app


def lines(*items, end=b"data: [DONE]\n\n", split=None):
    """A handler that sends these bytes or objects as a stream, in pieces of `split` bytes."""

    async def handler(request):
        handler.body = await request.json()
        response = web.StreamResponse()
        await response.prepare(request)
        data = b"".join(
            item if isinstance(item, bytes) else b"data: " + json.dumps(item).encode() + b"\n\n"
            for item in items
        )
        data += end
        step = split or len(data) or 1
        for at in range(0, len(data), step):
            await response.write(data[at : at + step])
        return response

    return handler


def event(text, *, finish=None, **more):
    meta = {
        "id": "r",
        "finish_reason": finish,
        "prompt_tokens": 3,
        "completion_tokens": len(text),
        "cached_tokens": 1,
    }
    meta.update(more.pop("meta", {}))
    return {
        "text": text,
        "output_ids": list(map(ord, text)),
        "meta_info": meta,
        "segments": [{"ids": list(map(ord, text))}] if finish else [],
        "rendered": ["<u>"],
        **more,
    }


STOP = {"type": "stop", "matched": 0}


def ask(endpoint, prompt="p", **params):
    request = GenerateRequest(prompt=prompt, params=SamplingParams(**params), rid="r")
    return loop.run(collect(endpoint.generate(request)))


# ---- with our own server ----


@boughs.function
def chat(s, question):
    s += boughs.system("<|im_end|>")
    s += boughs.user(question)
    s += boughs.assistant(
        "So " + boughs.gen("a", max_tokens=40, stop=["\n", "é"], temperature=0.5, seed=3)
    )
    s += boughs.user("sure?") + boughs.assistant(boughs.select("b", choices=["yes", "no"]))
    branches = s.fork(2)
    branches += lambda i: boughs.user(f"{i}") + boughs.assistant(boughs.gen("c", n=2))
    branches.join()


def says(call):
    if call.choices:
        return "no"
    if call.request.params.n > 1:
        return [f"{call.text[-23]}{i}" for i in range(2)]
    return "Äpfel, 🍏 and so on"


def test_a_program_on_our_server_is_the_program_in_process(serve, connect):
    inside, served = MockBackend(says), Served(says)
    endpoint = connect(serve(make_app(served, ServerConfig())))
    options = {
        "return_logprob": True, "top_logprobs_num": 2, "return_text_in_logprobs": True,
        "token_ids_logprob": [65, 70], "allowed_token_ids": [65], "bad_words": ["x y"],
    }  # fmt: skip
    here = chat.run("q?", backend=inside, **options)
    there = chat.run("q?", backend=endpoint, **options)
    assert there.text() == here.text()
    assert there.messages() == here.messages()
    assert there.usage == here.usage
    for name in "abc":
        assert there[name] == here[name]
        assert unlabelled(there.get_meta_info(name)) == unlabelled(here.get_meta_info(name))
    assert [unnamed(c.request) for c in sorted_calls(served)] == [
        unnamed(c.request) for c in sorted_calls(inside)
    ]
    streamed = chat.run("q?", backend=endpoint, stream=True)
    assert "".join(streamed.text_iter("a")) == here["a"]
    assert "".join(streamed.text_iter()) == here.text()


def sorted_calls(backend):
    return sorted(backend.calls[:7], key=lambda call: (call.text, call.prefills))


def unlabelled(info):
    """Meta info without what differs from request to request."""
    if isinstance(info, list):
        return [unlabelled(item) for item in info]
    plain = {k: v for k, v in info.items() if k not in ("id", "e2e_latency")}
    return json.loads(json.dumps(plain))


def unnamed(request):
    request.rid = None
    return request


def test_prompts_of_every_kind(serve, connect):
    served = Served()
    endpoint = connect(serve(make_app(served, ServerConfig())))
    state = [Role("user", "begin"), Content("a"), Role("user", "end"), Text("b"), Ids([99], 0)]
    for prompt, seen in (("abc", [Text("abc")]), ([97, 98], [Ids([97, 98])]), (state, state)):
        (answer,) = ask(endpoint, prompt, max_new_tokens=None, logit_bias={5: 1.0})
        assert answer.text == "ok"
        assert served.calls[-1].request.prompt == seen
        assert served.calls[-1].request.params == SamplingParams(
            max_new_tokens=None, logit_bias={5: 1.0}
        )
        assert served.calls[-1].request.rid == "r"
    scores = loop.run(
        endpoint.score(ScoreRequest(prompt="ab", choices=["x", "yz"], unconditional=True))
    )
    assert [len(choice.logprobs) for choice in scores.choices] == [1, 2]
    assert scores.choices[1].unconditional == [-8.0, -8.0]


def test_the_cache_and_the_info(serve, connect):
    served = Served()
    endpoint = connect(serve(make_app(served, ServerConfig())))
    assert endpoint.get_model_name() == "/models/mock"
    assert boughs.get_server_info(endpoint)["model_path"] == "mock"
    ask(endpoint)
    assert served._seen
    assert boughs.flush_cache(endpoint) is True
    assert not served._seen


def test_answers_are_kept_by_what_the_server_says_it_is(serve, connect, tmp_path):
    backend, cache = Served(), boughs.CallCache(tmp_path)
    program = boughs.function(lambda s: s.__iadd__("q" + boughs.gen("x")) and None)
    endpoint = connect(serve(make_app(backend, ServerConfig())))
    for _ in range(2):
        state = program.run(backend=endpoint, temperature=0, cache=cache)
    assert state.usage.call_hits == len(backend.calls) == 1
    other = connect(serve(double()))
    with pytest.raises(Unsupported, match="does not say which weights"):
        program.run(backend=other, temperature=0, cache=cache)


def test_a_key_is_sent(serve, connect):
    url = serve(make_app(Served(), ServerConfig(api_key="k")))
    assert ask(connect(url + "/", api_key="k"))[0].text == "ok"
    for key in (None, "wrong"):
        with pytest.raises(Unauthorized, match="API key"):
            connect(url, api_key=key)


def test_leaving_an_answer_aborts_the_request(serve, connect):
    served = Served("a" * 400, delay=0.02)
    endpoint = connect(serve(make_app(served, ServerConfig())))

    async def leave():
        chunks = endpoint.generate(GenerateRequest(prompt="p", rid="mine"))
        await anext(chunks)
        await chunks.aclose()

    loop.run(leave())
    deadline = time.monotonic() + 5
    while not served.aborted and time.monotonic() < deadline:
        time.sleep(0.01)
    assert served.aborted == ["mine"]


def test_errors_of_the_server_are_the_same_errors_here(serve, connect):
    full = Overloaded("the queue is full")
    full.retry_after = 7.0
    faults = iter([InvalidRequest("n: too many", "n"), full, ValueError("secret")])
    endpoint = connect(serve(make_app(Served(lambda _: next(faults)), ServerConfig())))
    with pytest.raises(InvalidRequest, match="n: too many") as caught:
        ask(endpoint)
    assert caught.value.param == "n"
    with pytest.raises(Overloaded, match="full") as caught:
        ask(endpoint)
    assert caught.value.retry_after == 7.0
    with pytest.raises(BackendError, match="internal error"):
        ask(endpoint)


# ---- with servers that are odd ----


@pytest.mark.parametrize("split", [None, 1, 7])
def test_chunks_are_rebuilt_from_cumulative_lines(serve, connect, split):
    pieces = ["", "Ä", "Äpf🍏", "Äpf🍏 x"]
    items = [event(text) for text in pieces[:-1]] + [event(pieces[-1], finish=STOP)]
    handler = lines(b": keep-alive\n\n", *items, split=split)
    endpoint = connect(serve(double(handler)))

    async def chunks():
        return [c async for c in endpoint.generate(GenerateRequest(prompt="p"))]

    made = loop.run(chunks())
    assert [c.text for c in made] == ["", "Ä", "pf🍏", " x"]
    assert [c.rendered for c in made] == [["<u>"], None, None, None]
    assert [c.finish is None for c in made] == [True, True, True, False]
    assert made[-1].segments == [Ids(list(map(ord, pieces[-1])))]
    assert handler.body["stream"] is True
    assert "rid" not in handler.body


def test_logprobs_are_rebuilt(serve, connect):
    first = event("a", meta={
        "input_token_logprobs": [[None, 1, "x"], [-1.0, 2, "y"]],
        "output_token_logprobs": [[-0.5, 97, "a"]],
        "input_top_logprobs": [None, [[-1.0, 2, "y"]]],
        "output_top_logprobs": [[[-0.5, 97, "a"]]],
    })  # fmt: skip
    second = event("ab", finish=STOP, meta={
        "input_token_logprobs": [[None, 1, "x"], [-1.0, 2, "y"]],
        "output_token_logprobs": [[-0.5, 97, "a"], [-0.25, 98, "b"]],
        "input_top_logprobs": [None, [[-1.0, 2, "y"]]],
        "output_top_logprobs": [[[-0.5, 97, "a"]], [[-0.25, 98, "b"]]],
        "input_token_ids_logprobs": [None, [[-3.0, 7, "g"]]],
        "output_token_ids_logprobs": [[[-3.0, 7, "g"]], [[-9999.0, 7, "g"]]],
    })  # fmt: skip
    (answer,) = ask(connect(serve(double(lines(first, second)))))
    assert [(t.logprob, t.token_id, t.text) for t in answer.logprobs] == [
        *((-0.5, 97, "a"), (-0.25, 98, "b"))
    ]
    assert [t.logprob for t in answer.prompt_logprobs] == [None, -1.0]
    assert answer.logprobs[1].top == [(-0.25, 98, "b")]
    assert answer.prompt_logprobs[0].top is None
    assert answer.logprobs[1].given == [(-9999.0, 7, "g")]
    assert answer.prompt_logprobs[0].given is None


def test_choices_are_told_apart(serve, connect):
    items = [event("a", index=0), event("x", index=1), event("xy", index=1, finish=STOP)]
    handler = lines(*items, event("ab", index=0, finish=STOP))
    answers = ask(connect(serve(double(handler))), n=2)
    assert [a.text for a in answers] == ["ab", "xy"]


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (lines(event("a"), end=b""), "ended before the answer was complete"),
        (lines(event("abc"), event("de")), "took back text"),
        (lines(b"data: nonsense\n\n"), "no JSON object"),
        (lines(b"data: [1]\n\n"), "no JSON object"),
        (lines({"text": "a"}), "not of the form"),
        (lines({"error": {"message": "it broke", "type": "Odd"}}), "it broke"),
        (lines({"error": "it broke"}), "it broke"),
        (lines(event("a")), "without a finish reason"),
        (lines(), "answered nothing"),
    ],
)
def test_a_stream_that_is_wrong_is_an_error_with_the_programs_place(
    serve, connect, handler, message
):
    endpoint = connect(serve(double(handler)))
    program = boughs.function(lambda s: s.__iadd__(boughs.gen("x")) and None)
    with pytest.raises(BackendError, match=f"program <lambda>, variable 'x', request .*{message}"):
        program.run(backend=endpoint)


def test_an_error_line_is_the_error_it_names(serve, connect):
    fault = {"message": "timeout: passed", "type": "RequestTimeout"}
    endpoint = connect(serve(double(lines(event("a"), {"error": fault}))))
    with pytest.raises(RequestTimeout, match="passed"):
        ask(endpoint)


def test_answers_that_are_no_json(serve, connect):
    async def teapot(_):
        return web.Response(status=418, text="I am a teapot" * 100)

    async def plain(_):
        return web.Response(text="hello")

    with pytest.raises(BackendError, match=r"418.*I am a teapot"):
        ask(connect(serve(double(teapot))))
    with pytest.raises(BackendError, match="not JSON"):
        loop.run(connect(serve(double(plain, "/flush_cache"))).flush_cache())
    with pytest.raises(BackendError, match="not JSON"):
        connect(serve(double(info="hello")))
    endpoint = connect(serve(double(plain_json, "/score")))
    with pytest.raises(BackendError, match="unexpected answer"):
        loop.run(endpoint.score(ScoreRequest(prompt="p", choices=["a"])))


async def plain_json(_):
    return web.Response(text='{"choices": 5}')


def test_a_connection_that_breaks(serve, connect):
    async def breaks(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"data: " + json.dumps(event("a")).encode() + b"\n\n")
        request.transport.abort()
        return response

    with pytest.raises(BackendError, match="connection broke"):
        ask(connect(serve(double(breaks))))


def test_a_server_that_sends_nothing_is_left_after_the_timeout(serve, connect):
    async def silent(_):
        await asyncio.sleep(30)

    endpoint = connect(serve(double(silent)), timeout=0.2)
    with pytest.raises(RequestTimeout, match=r"no answer within 0.2 s"):
        ask(endpoint)


def test_nobody_listens():
    with pytest.raises(BackendError, match=r"cannot reach http://127\.0\.0\.1:9"):
        boughs.RuntimeEndpoint("http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"base_url": "127.0.0.1:30000"}, InvalidRequest, "base_url"),
        ({"base_url": 5}, InvalidRequest, "base_url"),
        ({"base_url": "http://x", "chat_template_name": "qwen"}, Unsupported, "chat_template_name"),
        ({"base_url": "http://x", "timeout": 0}, InvalidRequest, "timeout"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, named):
    with pytest.raises(error, match=named):
        boughs.RuntimeEndpoint(**arguments)


@pytest.mark.parametrize("answer", [{"embedding": [1.0]}, {"embedding": "x", "meta_info": {}}, []])
def test_an_unexpected_vector(serve, connect, answer):
    async def odd(_):
        return web.json_response(answer)

    endpoint = connect(serve(double(odd, "/encode")))
    with pytest.raises(BackendError, match="/encode: unexpected answer"):
        loop.run(endpoint.encode(EncodeRequest(prompt="a")))


def test_a_path_that_the_server_lacks(serve, connect):
    async def lacks(_):
        body = {"error": {"message": "there is no such path", "type": "NotFound"}}
        return web.json_response(body, status=404)

    with pytest.raises(NotFound, match="no such path"):
        ask(connect(serve(double(lacks))))


def test_after_close_nothing_is_sent(serve, connect):
    endpoint = connect(serve(make_app(Served(), ServerConfig())))
    endpoint.close()
    endpoint.close()
    with pytest.raises(BackendError, match="was closed"):
        ask(endpoint)


def test_an_endpoint_that_is_dropped_is_closed(serve):
    endpoint = boughs.RuntimeEndpoint(serve(double(lines())))
    session = endpoint._http._session
    del endpoint
    gc.collect()
    assert session.closed


def test_the_process_ends_without_a_word_about_open_connections(serve):
    url = serve(make_app(Served(), ServerConfig()))
    code = (
        "import boughs, sys\n"
        f"boughs.set_default_backend(boughs.RuntimeEndpoint({url!r}))\n"
        "@boughs.function\n"
        "def program(s):\n"
        "    s += boughs.gen('x')\n"
        "print(program.run()['x'])\n"
    )
    command = [sys.executable, "-P", "-X", "dev", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.stdout, done.stderr) == ("ok\n", "")


def test_many_programs_share_the_connections(serve, connect):
    served = Served(delay=0.001)
    endpoint = connect(serve(make_app(served, ServerConfig())))

    @boughs.function
    def program(s, i):
        s += f"{i}" + boughs.gen("x")

    states = program.run_batch([(i,) for i in range(60)], backend=endpoint)
    assert [state["x"] for state in states] == ["ok"] * 60
    assert len(served.calls) == 60
