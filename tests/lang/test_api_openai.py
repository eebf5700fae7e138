"""OpenAI's chat and completions, through the real package, against a double of the wire."""

import asyncio
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

import boughs
from boughs.lang.errors import (
    BackendError,
    GrammarError,
    InvalidRequest,
    NotFound,
    Overloaded,
    RequestAborted,
    RequestTimeout,
    Unauthorized,
    Unsupported,
)


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
def api():
    """A double and a way to get a backend on it."""
    made = []

    def make(say="ok", *, text=False, model="gpt-4o-mini", client=None, **double):
        server = doubles.Double(say, **double)
        options = {"api_key": "k", "max_retries": 0, **(client or {})}
        backend = boughs.OpenAI(
            model, is_chat_model=not text, base_url=server.url + "/v1", **options
        )
        made.append((server, backend))
        return server, backend

    yield make
    for server, backend in made:
        backend.close()
        server.__exit__()


@boughs.function
def ask(s, **gen):
    s += boughs.system("Be brief.") + boughs.user("2+2?") + boughs.assistant(boughs.gen("x", **gen))


@boughs.function
def write(s, **gen):
    s += "Once" + boughs.gen("x", **gen)


def test_roles_become_messages_and_an_answer_comes_back(api):
    server, backend = api("four")
    s = ask.run(backend=backend, max_new_tokens=7)
    assert s["x"] == "four"
    (seen,) = server.seen
    assert seen.body == {
        "model": "gpt-4o-mini",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "2+2?"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 7,
    }
    meta = s.get_meta_info("x")
    assert meta["finish_reason"] == {"type": "stop", "matched": None}
    assert (meta["prompt_tokens"], meta["cached_tokens"], meta["completion_tokens"]) == (13, 6, 4)
    assert s.usage.completion_tokens == 4
    assert s.messages()[-1] == {"role": "assistant", "content": "four"}


def test_every_parameter_of_the_api_is_sent(api):
    server, backend = api(["a", "b"])
    given = {
        "temperature": 0.5,
        "top_p": 0.9,
        "frequency_penalty": 0.1,
        "presence_penalty": -0.1,
        "seed": 3,
    }
    s = ask.run(
        n=2, stop=["\n", "END"], logit_bias={7: 1.0}, max_tokens=9, backend=backend, **given
    )
    body = server.seen[0].body
    assert {name: body[name] for name in given} == given
    assert (body["n"], body["stop"], body["logit_bias"]) == (2, ["\n", "END"], {"7": 1.0})
    assert s["x"] == ["a", "b"]
    assert s.usage.completion_tokens == 2


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"top_k": 5}, "top_k"),
        ({"min_p": 0.1}, "min_p"),
        ({"ebnf": "start: /a/"}, "ebnf"),
        ({"repetition_penalty": 1.2}, "repetition_penalty"),
        ({"cache_salt": "a"}, "cache_salt"),
        ({"priority": 1}, "priority"),
        ({"min_tokens": 2}, "min_new_tokens"),
        ({"return_logprob": True, "top_logprobs_num": 21}, "top_logprobs_num"),
        ({"return_logprob": True, "logprob_start_len": 0}, "logprob_start_len"),
        ({"return_logprob": True, "token_ids_logprob": [1]}, "token_ids_logprob"),
        ({"regex": "a", "n": 2}, "n"),
    ],
)
def test_what_the_api_lacks_is_refused_by_name_before_anything_is_sent(api, given, name):
    server, backend = api()
    with pytest.raises(Unsupported, match=rf"{name}: .*OpenAI chat \(gpt-4o-mini\)"):
        ask.run(backend=backend, **given)
    assert server.seen == []


def test_the_text_streams_in_pieces(api):
    _, backend = api("abcdefgh", piece=3)
    s = ask.run(backend=backend, stream=True)
    assert list(s.text_iter("x")) == ["abc", "def", "gh"]


def test_logprobs_come_with_texts(api):
    _, backend = api("ab")
    s = ask.run(
        return_logprob=True, top_logprobs_num=2, return_text_in_logprobs=True, backend=backend
    )
    meta = s.get_meta_info("x")
    assert meta["output_token_logprobs"] == [(-1.0, -1, "a"), (-1.0, -1, "b")]
    assert meta["output_top_logprobs"][0] == [(-1.0, -1, "a"), (-2.0, -1, "b")]


def test_a_schema_is_a_response_format(api):
    server, backend = api('{"a": 1}')
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    strict = {**schema, "required": ["a"], "additionalProperties": False}
    assert ask.run(json_schema=schema, backend=backend)["x"] == '{"a": 1}'
    assert server.seen[0].body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": strict, "strict": True},
    }
    _, old = api(text=True)
    with pytest.raises(Unsupported, match="json_schema: OpenAI completions"):
        write.run(json_schema=schema, backend=old)


def test_a_json_object_is_a_response_format(api):
    server, backend = api('{"a": 1}')
    assert ask.run(json_object=True, backend=backend)["x"] == '{"a": 1}'
    assert server.seen[0].body["response_format"] == {"type": "json_object"}
    with pytest.raises(Unsupported, match="json_whitespace: OpenAI chat"):
        ask.run(json_object=True, json_whitespace=2, backend=backend)
    assert len(server.seen) == 1
    _, old = api(text=True)
    with pytest.raises(Unsupported, match="json_object: OpenAI completions"):
        write.run(json_object=True, backend=old)


def test_a_limit_is_a_finish_of_length(api):
    _, backend = api("abcdef")
    meta = ask.run(max_tokens=4, backend=backend).get_meta_info("x")
    assert meta["finish_reason"] == {"type": "length", "length": 4}


@pytest.mark.parametrize(
    ("given", "text", "matched"),
    [
        ({"stop": list("vwxyz")}, "ab", "z"),
        ({"stop_regex": "[yz]+!"}, "abzc", "y!"),
        ({"stop": "z", "no_stop_trim": True}, "abz", "z"),
        ({"stop_regex": "Q"}, "abzcy!", None),
    ],
)
def test_stops_that_the_api_lacks_are_found_here(api, given, text, matched):
    server, backend = api("abzcy!", piece=1)
    s = ask.run(backend=backend, **given)
    assert s["x"] == text
    meta = s.get_meta_info("x")
    assert meta["finish_reason"]["matched"] == matched
    assert meta.get("usage_known", True) is (matched is None)
    assert "stop" not in server.seen[0].body


def test_a_stop_found_here_closes_the_request_and_its_usage_is_said_to_be_unknown(api):
    server, backend = api("ab;" + "c" * 200000, delay=0.005)
    s = ask.run(stop_regex=";", max_tokens=300000, backend=backend)
    assert s["x"] == "ab"
    assert s.get_meta_info("x")["usage_known"] is False
    assert server.seen[0].broken.wait(20)


def test_a_cancelled_program_closes_its_request(api):
    server, backend = api("c" * 50000, delay=0.005)

    async def main():
        running = asyncio.ensure_future(ask.run_async(max_tokens=60000, backend=backend))
        assert await asyncio.to_thread(server.came.wait, 20)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert server.seen[0].broken.wait(20)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, InvalidRequest),
        (401, Unauthorized),
        (403, Unauthorized),
        (404, NotFound),
        (408, RequestTimeout),
        (422, InvalidRequest),
        (429, Overloaded),
        (500, BackendError),
        (503, Overloaded),
    ],
)
def test_an_error_is_one_of_ours_with_the_apis_words(api, status, error):
    _, backend = api(lambda body, number: doubles.refused(status, "so it is", Retry_After="7"))
    with pytest.raises(
        error, match=r"variable 'x'.*OpenAI chat \(gpt-4o-mini\): so it is"
    ) as caught:
        ask.run(backend=backend)
    if error is Overloaded:
        assert caught.value.retry_after == 7.0


def test_the_client_tries_again_as_often_as_it_was_told(api):
    def say(body, number):
        return "ok" if number == 2 else doubles.refused(429, "later", retry_after_ms="1")

    server, backend = api(say, client={"max_retries": 2})
    assert ask.run(backend=backend)["x"] == "ok"
    assert len(server.seen) == 3


def test_a_server_that_is_silent_or_absent(api):
    server, backend = api("c" * 50000, delay=0.05, client={"timeout": 60})
    with pytest.raises(RequestTimeout, match=r"timeout: no answer .* within 0.2 s"):
        ask.run(timeout=0.2, backend=backend)
    assert server.seen[0].broken.wait(20)
    gone = boughs.OpenAI("m", base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
    with pytest.raises(BackendError, match="Connection error"):
        ask.run(backend=gone)


@pytest.mark.parametrize("reason", ["content_filter", "something new"])
def test_an_answer_that_the_api_ended_is_no_answer(api, reason):
    _, backend = api("half", finish=reason)
    with pytest.raises(RequestAborted, match=reason):
        ask.run(backend=backend)


def test_a_broken_stream_is_an_error(api):
    from aiohttp import web

    _, backend = api(
        lambda body, number: web.Response(
            body=b'data: {"choices": []}\n\n', content_type="text/event-stream"
        )
    )
    with pytest.raises(BackendError, match="without a finish reason"):
        ask.run(backend=backend)


def test_text_where_a_chat_has_no_place_for_it(api):
    server, backend = api()

    @boughs.function
    def outside(s):
        s += "Once" + boughs.gen("x")

    @boughs.function
    def as_user(s):
        s += boughs.user(boughs.gen("x"))

    @boughs.function
    def begun(s):
        s += boughs.user("?") + boughs.assistant("It is " + boughs.gen("x"))

    for program, message in [
        (outside, r"'Once' outside of roles"),
        (as_user, "generation in a turn of user"),
        (begun, r"'It is ' before gen .*num_api_spec_tokens"),
    ]:
        with pytest.raises(Unsupported, match=message):
            program.run(backend=backend)
    assert server.seen == []


# ---- regex ----


def test_a_regex_is_asked_for_until_it_matches(api):
    said = ["The answer is 4", "no", "42 apples"]
    server, backend = api(lambda body, number: said[number], piece=1)
    s = ask.run(dtype=int, seed=5, backend=backend)
    assert s["x"] == "42"
    assert s.get_meta_info("x")["tries"] == 3
    assert [seen.body["seed"] for seen in server.seen] == [5, 6, 7]
    assert "stop" not in server.seen[0].body


def test_a_match_is_taken_as_soon_as_nothing_more_could_belong_to_it(api):
    _, backend = api("Yes, because", piece=2)
    assert ask.run(regex="Yes|No", backend=backend)["x"] == "Yes"


def test_a_regex_is_given_up_after_a_bound(api):
    server, backend = api("abc")
    with pytest.raises(BackendError, match=r"asked 5 times .* '\[0-9\]\+'; at last 'abc'"):
        ask.run(regex="[0-9]+", backend=backend)
    assert len(server.seen) == 5
    with pytest.raises(GrammarError, match="regex"):
        ask.run(regex="(", backend=backend)


def test_a_begin_of_a_match_is_enough_where_the_limit_cuts_it(api):
    _, backend = api("123-456")
    s = ask.run(regex="[0-9]{3}-[0-9]{3}", max_tokens=5, backend=backend)
    assert s["x"] == "123-4"
    assert s.get_meta_info("x")["finish_reason"]["type"] == "length"


# ---- select ----


@boughs.function
def decide(s, before="", **select):
    s += boughs.user("Is it?")
    s += boughs.assistant(before + boughs.select("x", choices=["yes", "no", "no way"], **select))


@pytest.mark.parametrize(
    ("said", "chosen"),
    [("no", "no"), (" No.\n", "no"), ('"no way"', "no way"), ("No way, Sir", "no way")],
)
def test_a_chat_model_is_asked_to_choose(api, said, chosen):
    server, backend = api(said)
    s = decide.run(backend=backend)
    assert s["x"] == chosen
    assert s.get_meta_info("x")["tries"] == 1
    question = server.seen[0].messages[-1]
    assert question["role"] == "user"
    assert question["content"].endswith("- yes\n- no\n- no way")
    assert s.messages()[-1]["content"] == chosen
    with pytest.raises(InvalidRequest, match="chose without scoring"):
        s.choice_probs("x")
    assert s.usage.completion_tokens == len(said)


def test_a_chat_model_that_does_not_choose_is_asked_again_up_to_a_bound(api):
    server, backend = api(lambda body, number: ["maybe", "yesterday", "yes"][number])
    assert decide.run(backend=backend).get_meta_info("x")["tries"] == 3
    server, backend = api("maybe")
    with pytest.raises(BackendError, match=r"asked 5 times and wrote none of .*'maybe'"):
        decide.run(backend=backend)
    assert len(server.seen) == 5


def test_what_an_answer_has_begun_with_is_part_of_the_question(api):
    server, backend = api("yes")
    assert decide.run(before="I say ", backend=backend)["x"] == "yes"
    assert "'I say '" in server.seen[0].messages[-1]["content"]


def test_other_methods_need_logprobs(api):
    _, backend = api("yes")
    with pytest.raises(Unsupported, match="choices_method: OpenAI chat"):
        decide.run(choices_method=boughs.greedy_token_selection, backend=backend)


# ---- completions ----


def test_completions_continue_a_text(api):
    server, backend = api(" upon", text=True)
    s = write.run(stop="!", max_tokens=8, backend=backend)
    assert s.text() == "Once upon"
    body = server.seen[0].body
    assert (body["prompt"], body["max_tokens"], body["stop"]) == ("Once", 8, ["!"])
    with pytest.raises(Unsupported, match="role 'system'"):
        ask.run(backend=backend)


def test_completions_give_logprobs(api):
    _, backend = api("ab", text=True)
    s = write.run(
        return_logprob=True, top_logprobs_num=2, return_text_in_logprobs=True, backend=backend
    )
    meta = s.get_meta_info("x")
    assert meta["output_token_logprobs"] == [(-1.0, -1, "a"), (-1.0, -1, "b")]
    assert meta["output_top_logprobs"][1] == [(-1.0, -1, "b"), (-2.0, -1, "c")]


def test_completions_score_choices_from_the_border_on(api):
    def score(prompt):
        return [None, *(-float(ord(c) % 7) / 10 for c in prompt[1:])]

    @boughs.function
    def pick(s, **select):
        s += "Ask:" + boughs.select("x", choices=["ab", "abc", "zz"], **select)

    server, backend = api(lambda body, number: score, text=True)
    s = pick.run(backend=backend)
    assert server.seen[0].body["prompt"] == ["Ask:", "Ask:ab", "Ask:abc", "Ask:zz"]
    want = {c: [-(ord(x) % 7) / 10 for x in c] for c in ("ab", "abc", "zz")}
    means = {c: sum(lps) / len(lps) for c, lps in want.items()}
    assert s["x"] == max(means, key=means.get)
    got = s.get_meta_info("x")["normalized_prompt_logprobs"]
    assert got == pytest.approx(list(means.values()))
    assert sum(s.choice_probs("x").values()) == pytest.approx(1)
    assert pick.run(choices_method=boughs.greedy_token_selection, backend=backend)["x"] == "zz"
    with pytest.raises(Unsupported, match="without its prompt"):
        pick.run(choices_method=boughs.unconditional_likelihood_normalized, backend=backend)


# ---- names, keys, packages ----


def test_what_a_model_is_called_says_which_api_it_has():
    kinds = {
        name: repr(boughs.OpenAI(name, api_key="k"))
        for name in ("gpt-4o-mini", "gpt-3.5-turbo-instruct", "davinci-002")
    }
    assert kinds["gpt-4o-mini"] == "<OpenAI chat (gpt-4o-mini)>"
    assert kinds["davinci-002"] == "<OpenAI completions (davinci-002)>"
    assert kinds["gpt-3.5-turbo-instruct"].startswith("<OpenAI completions")
    azure = boughs.OpenAI(
        "d", is_azure=True, api_key="k", api_version="v", azure_endpoint="http://127.0.0.1:9"
    )
    assert azure.get_model_name() == "d"
    assert boughs.get_server_info(azure)["model_path"] == "d"
    with pytest.raises(Unsupported, match="flush_cache"):
        boughs.flush_cache(azure)


def test_wrong_arguments_are_named(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(Unauthorized, match="api_key"):
        boughs.OpenAI("m")
    for given, name in [
        ({"model_name": ""}, "model_name"),
        ({"model_name": "m", "chat_template": "chatml"}, "chat_template"),
        ({"model_name": "m", "tries": 0, "api_key": "k"}, "tries"),
    ]:
        with pytest.raises(InvalidRequest, match=name):
            boughs.OpenAI(**given)
    with pytest.raises(AttributeError, match=r"VertexAI.*LiteLLM"):
        boughs.VertexAI


@pytest.mark.parametrize("name", ["OpenAI", "Anthropic", "LiteLLM"])
def test_a_missing_package_is_an_error_with_the_command(name):
    package = name.lower()
    code = f"""
import sys
import boughs
boughs.{name}
assert {package!r} not in sys.modules
sys.modules[{package!r}] = None
try:
    boughs.{name}("m")
except boughs.Unsupported as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == (
        f"{name} needs the package {package}: pip install 'boughs[{package}]'"
    ), done.stderr


def test_a_program_of_sglang_runs(api):
    import boughs as sgl

    server, backend = api(lambda body, number: ["Paris", "Two"][number])
    sgl.set_default_backend(backend)
    try:

        @sgl.function
        def multi_turn_question(s, question_1, question_2):
            s += sgl.system("You are a helpful assistant.")
            s += sgl.user(question_1)
            s += sgl.assistant(sgl.gen("answer_1", max_tokens=256))
            s += sgl.user(question_2)
            s += sgl.assistant(sgl.gen("answer_2", max_tokens=256))

        state = multi_turn_question.run(question_1="Capital?", question_2="How many?")
    finally:
        sgl.global_config.default_backend = None
    assert [m["content"] for m in state.messages()][1:] == ["Capital?", "Paris", "How many?", "Two"]
    assert server.seen[1].messages == state.messages()[:-1]
    assert json.dumps(state.messages())


def test_answers_are_kept_on_disk(api, tmp_path):
    cache = boughs.CallCache(tmp_path)
    server, backend = api(lambda body, number: f"answer {number}")
    states = [ask.run(temperature=0, backend=backend, cache=cache) for _ in range(2)]
    assert [state["x"] for state in states] == ["answer 0", "answer 0"]
    assert [state.usage.call_hits for state in states] == [0, 1]
    assert len(server.seen) == 1
    other, elsewhere = api("elsewhere")  # the same model at another place
    assert ask.run(temperature=0, backend=elsewhere, cache=cache)["x"] == "elsewhere"
    assert ask.run(backend=backend, cache=cache)["x"] == "answer 1"  # drawn anew
    assert len(other.seen) == 1
