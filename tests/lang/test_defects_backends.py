"""The defects of SGLang's frontend (0.5.23) that concern backends: none is here.

Numbers are those of `test_defects.py`, which has the others.
"""

import asyncio
import importlib.util
import json
import sys
from pathlib import Path

import pytest
from aiohttp import web

import boughs
from boughs.lang.errors import BackendError, InvalidRequest, RequestTimeout, Unsupported
from boughs.testing import MockBackend


def load(name):
    path = Path(__file__).parents[1] / "fixtures" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


doubles = load("api_doubles")
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def openai():
    """Makes an OpenAI model behind a double that says what a test tells it to."""
    made = []

    def make(say, model="gpt-5", **options):
        server = doubles.Double(say)
        backend = boughs.OpenAI(model, base_url=server.url + "/v1", api_key="k", **options)
        made.append((server, backend))
        return server, backend

    yield make
    for server, backend in made:
        backend.close()
        server.__exit__()


@pytest.fixture
def endpoint():
    """Makes an endpoint whose server answers `/generate` with these lines, or is silent."""
    made = []

    def make(*lines, **options):
        async def generate(request):
            if not lines:
                await asyncio.sleep(30)
            response = web.StreamResponse()
            await response.prepare(request)
            for line in (*lines, "[DONE]"):
                text = line if isinstance(line, str) else json.dumps(line)
                await response.write(f"data: {text}\n\n".encode())
            return response

        async def info(_):
            return web.json_response({"model_path": "m"})

        class Server(doubles.Double):
            async def _start(self):
                app = web.Application()
                app.router.add_get("/get_model_info", info)
                app.router.add_post("/generate", generate)
                self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
                await self._runner.setup()
                site = web.TCPSite(self._runner, "127.0.0.1", 0)
                await site.start()
                self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

        server = Server()
        backend = boughs.RuntimeEndpoint(server.url, **options)
        made.append((server, backend))
        return backend

    yield make
    for server, backend in made:
        backend.close()
        server.__exit__()


def event(text, finish=None):
    meta = {"id": "r", "finish_reason": finish, "prompt_tokens": 1, "completion_tokens": 1}
    return {
        "text": text,
        "output_ids": list(map(ord, text)),
        "meta_info": {**meta, "cached_tokens": 0},
        "rendered": [],
        "segments": None if finish is None else [{"text": text}],
    }


@boughs.function
def one(s):
    s += "q" + boughs.gen("x")


@boughs.function(num_api_spec_tokens=16)
def ahead(s, stop="."):
    s += "Name:" + boughs.gen("name", stop=stop) + ". Job: " + boughs.gen("job", stop=stop)


def test_12_a_bound_program_still_speculates(openai):
    server, backend = openai(" Ada. Job: poet.", "davinci-002", is_chat_model=False)
    for program in (ahead, ahead.bind(stop=".")):
        before = len(server.seen)
        state = program.run(backend=backend, max_tokens=64)
        assert (state["name"], state["job"]) == (" Ada", "poet")
        assert len(server.seen) == before + 1


def test_30_a_stream_of_increments_is_an_error_and_not_another_text(endpoint):
    backend = endpoint(event("abc"), event("de"), event("fghij", {"type": "stop", "matched": None}))
    with pytest.raises(BackendError, match="took back text"):
        one.run(backend=backend)


def test_31_an_error_in_a_stream_is_that_error(endpoint):
    backend = endpoint(event("a"), {"error": {"message": "out of memory", "type": "Odd"}})
    with pytest.raises(BackendError, match=r"variable 'x'.*out of memory"):
        one.run(backend=backend)


def test_32_anthropics_system_prompt_stays():
    @boughs.function
    def chat(s):
        s += boughs.system("Be brief.")
        for turn in range(3):
            s += boughs.user("?") + boughs.assistant(boughs.gen(f"x{turn}"))

    with doubles.Double("ok") as server:
        backend = boughs.Anthropic("claude", base_url=server.url, api_key="k")
        state = chat.run(backend=backend)
        backend.close()
    assert [seen.body["system"] for seen in server.seen] == ["Be brief."] * 3
    assert state.messages()[0]["role"] == "system"


def test_33_completions_stream_and_take_a_dtype_and_new_models_get_their_limit(openai):
    _, backend = openai(" 42 apples", "davinci-002", is_chat_model=False)
    state = one.run(backend=backend, stream=True)
    assert "".join(state.text_iter("x")) == " 42 apples"

    @boughs.function
    def number(s):
        s += "There are" + boughs.gen_int("x")

    _, backend = openai("42 apples", "davinci-002", is_chat_model=False)
    assert number.run(backend=backend)["x"] == "42"

    @boughs.function
    def turn(s):
        s += boughs.user("?") + boughs.assistant(boughs.gen("x", max_tokens=5))

    server, backend = openai("ok")
    turn.run(backend=backend)
    assert server.seen[0].body["max_completion_tokens"] == 5
    assert "max_tokens" not in server.seen[0].body


def test_34_speculation_that_fails_says_so_and_limits_are_tokens(openai):
    @boughs.function(num_api_spec_tokens=16)
    def turn(s):
        s += boughs.user("?")
        s += boughs.assistant("Name: " + boughs.gen("x", stop="."))

    server, backend = openai("Something else.")
    with pytest.raises(BackendError, match=r"num_api_spec_tokens.*3 times"):
        turn.run(backend=backend)
    assert len(server.seen) == 3
    server, backend = openai("x" * 40, "davinci-002", is_chat_model=False)
    state = ahead.run(backend=backend, max_tokens=5)
    assert state["name"] == "x" * 5  # a token of the double is a character


def test_35_a_template_is_the_models_own_and_none_is_guessed(tiny_model, tmp_path):
    @boughs.function
    def turn(s):
        s += boughs.user("Hi") + boughs.assistant(boughs.gen("x", max_tokens=1, temperature=0))

    with boughs.Engine(model_path=tiny_model, in_process=True, kv_memory="16M") as engine:
        own = turn.run(backend=engine).text()
        tokenizer = engine.endpoint.tokenizer.hf
        expected = tokenizer.apply_chat_template(
            [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
        )
        assert own.startswith(expected)
        tokenizer.chat_template = None
        engine.endpoint.chat._marks.clear()
        with pytest.raises(Unsupported, match="no chat template"):
            turn.run(backend=engine)
    for make in (
        lambda: boughs.RuntimeEndpoint("http://127.0.0.1:1", chat_template_name="chatml"),
        lambda: boughs.OpenAI("gpt-5", chat_template="chatml", api_key="k"),
    ):
        with pytest.raises(Unsupported, match="chat_template"):
            make()


def test_36_images_can_be_traced():
    @boughs.function
    def look(s):
        s += boughs.user("See " + boughs.image(b"GIF89a")) + boughs.assistant(boughs.gen("x"))

    assert "image/gif" in str(look.trace())


def test_38_the_rest_of_a_turn_with_reasoning_stays():
    @boughs.function
    def think(s):
        s += boughs.user("?")
        parts = "Before. " + boughs.gen("x") + " After."
        s += boughs.separate_reasoning(boughs.assistant(parts), "qwen3")

    state = think.run(backend=MockBackend("<think>hm</think>42"))
    assert (state["x"], state["x_reasoning_content"]) == ("42", "hm")
    assert state.messages()[-1]["content"] == "Before. 42 After."


def test_39_a_dead_server_hangs_nobody(endpoint):
    with pytest.raises(RequestTimeout, match=r"no answer within 0\.2 s"):
        one.run(backend=endpoint(timeout=0.2))
    with pytest.raises(BackendError, match="cannot reach"):
        boughs.RuntimeEndpoint("http://127.0.0.1:9")
    with pytest.raises(InvalidRequest, match="timeout"):
        endpoint(timeout=0)
