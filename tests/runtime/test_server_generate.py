"""`/generate` against an engine without a model: SGLang's wire, field by field."""

import importlib.util
import itertools
import json
from pathlib import Path

import pytest

_path = Path(__file__).parents[1] / "fixtures" / "fake_engine.py"
_spec = importlib.util.spec_from_file_location("fake_engine", _path)
fake = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fake)


@pytest.fixture(scope="module")
def site():
    with fake.served(fake.FakeEngine({"hi": "hello, world", "é": "naïve 日本語 😀"})) as site:
        yield site


def asked(site):
    return site.engine.seen[-1]


def test_text(site):
    answer = site.post("/generate", {"text": "hi"})
    assert set(answer) == {"text", "output_ids", "meta_info"}
    assert answer["text"] == "hello, world"
    assert answer["output_ids"] == [ord(c) for c in "hello, world"]
    info = answer["meta_info"]
    latency = info.pop("e2e_latency")
    assert 0 <= latency < 20
    assert info == {
        "id": info["id"],
        "finish_reason": {"type": "stop", "matched": 0},
        "prompt_tokens": 2,
        "completion_tokens": 12,
        "cached_tokens": 1,
    }
    assert asked(site).params.max_new_tokens == 128
    assert not asked(site).return_logprob


def test_put_and_length(site):
    body = {"text": "x", "sampling_params": {"max_new_tokens": 5}}
    answer = site.post("/generate", body, method="PUT")
    assert answer["text"] == "The q"
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 5}


def test_prefill_only(site):
    answer = site.post("/generate", {"text": "abc", "sampling_params": {"max_new_tokens": 0}})
    assert answer["text"] == ""
    assert answer["output_ids"] == []
    assert answer["meta_info"]["prompt_tokens"] == 3
    assert answer["meta_info"]["completion_tokens"] == 0


def test_unmodified_client_fields(site):
    """Everything that SGLang's client sends with a `gen`."""
    params = {
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True,
        "max_new_tokens": 4,
        "min_new_tokens": 0,
        "n": 1,
        "stop": [],
        "stop_token_ids": [],
        "stop_regex": [],
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "ignore_eos": False,
        "regex": None,
        "json_schema": None,
    }
    assert site.post("/generate", {"text": "x", "sampling_params": params})["text"] == "The "
    site.post("/generate", {"text": "x", "sampling_params": {**params, "stop": "a", "regex": "a+"}})
    assert asked(site).params.stop == ("a",)
    assert asked(site).params.regex == "a+"


@pytest.mark.parametrize(
    ("body", "prompts"),
    [
        ({"text": ["a", "hi"]}, ["a", "hi"]),
        ({"text": ["a"]}, ["a"]),
        ({"input_ids": [[104, 105], [97]]}, [[104, 105], [97]]),
        ({"segments": [[{"text": "a"}], [{"content": "b"}]]}, None),
    ],
)
def test_lists(site, body, prompts):
    before = len(site.engine.seen)
    answers = site.post("/generate", body | {"sampling_params": {"max_new_tokens": 3}})
    assert isinstance(answers, list)
    seen = site.engine.seen[before:]
    assert len(answers) == len(seen)
    if prompts is not None:
        assert [one.prompt for one in seen] == prompts
    assert "index" not in answers[0]


def test_list_answers_in_order(site):
    site.engine.replies |= {str(i): str(i) * (20 - i) for i in range(20)}
    answers = site.post("/generate", {"text": [str(i) for i in range(20)]})
    assert [a["text"] for a in answers] == [str(i) * (20 - i) for i in range(20)]


def test_values_for_each_prompt(site):
    before = len(site.engine.seen)
    answers = site.post(
        "/generate",
        {
            "text": ["a", "b"],
            "sampling_params": [{"max_new_tokens": 1}, {"max_new_tokens": 2, "n": 2}],
            "rid": ["first", "second"],
            "return_logprob": [True, False],
            "logprob_start_len": [0, -1],
            "top_logprobs_num": [2, 0],
            "token_ids_logprob": [[5, 6], None],
            "heal": [False, True],
        },
    )
    assert [a["text"] for a in answers] == ["T", "Th", "Th"]
    first, second = site.engine.seen[before:]
    assert (first.rid, second.rid) == ("first", "second")
    assert (first.return_logprob, second.return_logprob) == (True, False)
    assert (first.logprob_start_len, second.logprob_start_len) == (0, -1)
    assert (first.top_logprobs_num, second.top_logprobs_num) == (2, 0)
    assert (first.token_ids_logprob, second.token_ids_logprob) == ((5, 6), ())
    assert (first.heal, second.heal) == (False, True)


@pytest.mark.parametrize("value", [[5, 6], [[5, 6], [5, 6]]])
def test_token_ids_for_every_prompt(site, value):
    body = {"text": ["a", "b"], "return_logprob": True, "token_ids_logprob": value}
    site.post("/generate", body | {"sampling_params": {"max_new_tokens": 1}})
    assert [one.token_ids_logprob for one in site.engine.seen[-2:]] == [(5, 6), (5, 6)]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("5", "token_ids_logprob: expected `array`"),
        ([5, "6"], "token_ids_logprob[1]: expected `int`"),
        ([[5], [6], [7]], "token_ids_logprob: 3 values for 2 prompts"),
        ([[5], 6], "token_ids_logprob[1]: expected"),
        ([True], "token_ids_logprob[0]: expected"),
    ],
)
def test_wrong_token_ids(site, value, words):
    body = {"text": ["a", "b"], "return_logprob": True, "token_ids_logprob": value}
    status, error = site.fail("/generate", body)
    assert status == 400
    assert words in error["message"]
    assert error["param"] == words.partition(":")[0]


def test_one_name_for_a_list(site):
    before = len(site.engine.seen)
    site.post("/generate", {"text": ["a", "b"], "rid": "call"})
    assert [one.rid for one in site.engine.seen[before:]] == ["call-0", "call-1"]


def test_n_answers_a_list(site):
    answers = site.post("/generate", {"text": "hi", "sampling_params": {"n": 3}})
    assert [a["text"] for a in answers] == ["hello, world"] * 3
    assert [a["meta_info"]["cached_tokens"] for a in answers] == [1, 2, 3]


def test_top_level_parameters(site):
    site.post("/generate", {"text": "a", "priority": 3, "extra_key": "tenant"})
    assert (asked(site).params.priority, asked(site).params.cache_salt) == (3, "tenant")


def test_unknown_top_level_keys_are_ignored(site):
    site.post("/generate", {"text": "a", "session_id": "x", "nonsense": [1], "log_metrics": False})


def test_unset_keys_that_we_lack(site):
    site.post("/generate", {"text": "a", "image_data": None, "lora_path": [], "heal": False})


@pytest.mark.parametrize("key", ["image_data", "lora_path", "session_params", "video_data"])
def test_keys_that_we_lack(site, key):
    status, error = site.fail("/generate", {"text": "a", key: True})
    assert status == 400
    assert error["type"] == "Unsupported"
    assert error["param"] == key
    assert key in error["message"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "exactly one of text, input_ids, segments"),
        ({"text": "a", "input_ids": [1]}, "text and input_ids"),
        ({"text": 3}, "text: expected a string"),
        ({"text": []}, "text: the list is empty"),
        ({"input_ids": []}, "input_ids: the list is empty"),
        ({"text": ["a", 3]}, "text[1]: expected `str`"),
        ({"input_ids": [1, "a"]}, "input_ids[1]: expected `int`"),
        ({"input_ids": [[1], [True]]}, "input_ids[1][0]: expected `int`"),
        ({"segments": [{"text": "a", "x": 1}]}, "segments[0]: unknown key 'x'"),
        ({"segments": [[{"ids": [1]}], [{"ids": ["a"]}]]}, "segments[1][0]"),
        ({"text": "a", "sampling_params": {"maxtokens": 1}}, "sampling_params.maxtokens"),
        ({"text": "a", "sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        ({"text": "a", "sampling_params": 3}, "sampling_params: expected an object"),
        ({"text": "a", "sampling_params": [{}]}, "sampling_params: expected an object"),
        ({"text": ["a", "b"], "sampling_params": [{}]}, "sampling_params: 1 values for 2"),
        ({"text": ["a", "b"], "sampling_params": [{}, {"n": 0}]}, "sampling_params[1].n"),
        ({"text": "a", "return_logprob": 1}, "return_logprob: expected bool"),
        ({"text": "a", "logprob_start_len": True}, "logprob_start_len: expected int"),
        ({"text": "a", "stream": "yes"}, "stream: expected a boolean"),
        ({"text": "a", "rid": 7}, "rid: expected `str`"),
        ({"text": ["a", "b"], "rid": ["x", "x"]}, "rid[1]: 'x' is given twice"),
        ({"text": ["a", "b"], "rid": ["x"]}, "rid: 1 values for 2 prompts"),
    ],
)
def test_wrong_bodies(site, body, words):
    before = len(site.engine.seen)
    status, error = site.fail("/generate", body)
    assert status == 400
    assert words in error["message"]
    assert error["code"] == 400
    assert len(site.engine.seen) == before  # nothing ran


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"3", b'{"text": "\xff"}', b"[" * 100_000])
def test_what_is_no_json_object(site, raw):
    status, error = site.fail("/generate", raw, method="POST")
    assert status == 400
    assert "JSON" in error["message"]


def test_lone_surrogates_and_nan_are_refused(site):
    assert site.fail("/generate", b'{"text": "\\ud800"}')[0] == 400
    assert site.fail("/generate", b'{"text": "a", "sampling_params": {"top_p": NaN}}')[0] == 400


def test_errors_of_the_engine(site):
    status, error = site.fail("/generate", {"text": "long"})
    assert (status, error["type"], error["param"]) == (400, "Unservable", "text")
    status, headers, answer = site.call("/generate", {"text": "full"})
    assert (status, answer["error"]["type"]) == (429, "Overloaded")
    assert headers["Retry-After"] == "1"
    status, error = site.fail("/generate", {"text": "bug"})
    assert status == 500
    assert "secret" not in error["message"]


def test_long_lists_do_not_flood_the_engine(site, monkeypatch):
    """However many prompts and choices: only so many choices are with the engine at once."""
    most = 0

    async def counted(*args, whole=site.engine._chunks):
        nonlocal most
        most = max(most, len(site.engine.running))
        async for chunk in whole(*args):
            yield chunk

    monkeypatch.setattr(site.engine, "_chunks", counted)
    params = {"max_new_tokens": 1, "n": 100}
    answers = site.post("/generate", {"text": ["a"] * 30, "sampling_params": params})
    assert len(answers) == 3000
    assert most == 10
    status, error = site.fail("/generate", {"text": [""] * 100_001})
    assert status == 400
    assert "at most 100000" in error["message"]
    assert site.fail("/v1/completions", {"prompt": [""] * 100_001})[0] == 400
    assert len(site.post("/generate", {"input_ids": [97] * 100_001})["text"]) == 128


def test_one_failure_fails_the_list(site):
    site.on_loop(site.engine.hold)
    try:
        status, error = site.fail("/generate", {"text": ["a", "b", "long"], "rid": "three"})
    finally:
        site.engine.held = None
    assert status == 400
    assert error["type"] == "Unservable"
    assert error["message"] == "text[2]: the prompt is too long"
    assert {"three-0", "three-1"} <= set(site.engine.closed)
    assert not site.engine.running


# ---- logprobs ----


def entries(answer, key="input_token_logprobs"):
    return answer["meta_info"][key]


def test_output_logprobs(site):
    body = {"text": "ab", "return_logprob": True, "sampling_params": {"max_new_tokens": 2}}
    answer = site.post("/generate", body)
    assert entries(answer) == []
    assert entries(answer, "output_token_logprobs") == [
        [-0.125, ord("T"), None],
        [-0.25, ord("h"), None],
    ]
    assert "output_top_logprobs" not in answer["meta_info"]
    body |= {"top_logprobs_num": 1, "return_text_in_logprobs": True, "logprob_start_len": 1}
    answer = site.post("/generate", body)
    assert entries(answer) == [[-0.25, ord("b"), "b"]]
    assert entries(answer, "output_token_logprobs")[0] == [-0.125, ord("T"), "T"]
    assert entries(answer, "output_top_logprobs")[0] == [[-0.25, 65, "A"]]
    assert "output_token_ids_logprobs" not in answer["meta_info"]
    body |= {"token_ids_logprob": [66, 80], "logprob_start_len": 0}
    answer = site.post("/generate", body)
    assert entries(answer, "output_token_ids_logprobs")[0] == [
        [-0.125 - 66 / 16, 66, "B"],
        [-0.125 - 5, 80, "P"],
    ]
    assert entries(answer, "input_token_ids_logprobs")[0] is None
    assert len(entries(answer, "input_token_ids_logprobs")[1]) == 2


def test_prompt_logprobs_align_at_the_start_when_tokens_are_made(site):
    body = {"text": "abcd", "return_logprob": True, "sampling_params": {"max_new_tokens": 1}}
    assert [e[1] for e in entries(site.post("/generate", body | {"logprob_start_len": 2}))] == [
        ord("c"),
        ord("d"),
    ]
    assert entries(site.post("/generate", body | {"logprob_start_len": 0}))[0][0] is None


SCORING = {
    "sampling_params": {"max_new_tokens": 0, "temperature": 0},
    "return_logprob": True,
    "return_text_in_logprobs": True,
}


def test_select_above_the_start(site):
    """Step 2 of `select`: entries begin one token behind the start."""
    answers = site.post("/generate", {"text": ["abcX", "abcYZ"], "logprob_start_len": 1, **SCORING})
    assert entries(answers[0]) == [[-0.375, ord("c"), "c"], [-0.5, ord("X"), "X"]]
    assert [e[2] for e in entries(answers[1])] == ["c", "Y", "Z"]
    assert entries(answers[0], "output_token_logprobs") == []


def test_select_at_the_start(site):
    (answer,) = site.post("/generate", {"text": ["aX"], "logprob_start_len": 0, **SCORING})
    assert entries(answer) == [[0.0, ord("a"), "a"], [-0.25, ord("X"), "X"]]


def test_select_unconditional(site):
    answers = site.post(
        "/generate",
        {
            "input_ids": [[97, 98], [99]],
            "sampling_params": {"max_new_tokens": 0},
            "return_logprob": True,
        },
    )
    assert [len(entries(a)) for a in answers] == [2, 1]
    assert entries(answers[0])[0] == [None, 97, None]


def test_scoring_by_others(site):
    """Without the marks of that client's `select`, position 0 is null."""
    answer = site.post("/generate", {"text": "aX", **SCORING})
    assert entries(answer)[0] == [None, ord("a"), "a"]
    segments = [{"text": "abX"}]
    answer = site.post("/generate", {"segments": segments, "logprob_start_len": 1, **SCORING})
    assert [e[2] for e in entries(answer)] == ["b", "X"]
    assert entries(site.post("/generate", {"segments": segments, **SCORING})) == []


# ---- streams ----


def test_stream_is_cumulative(site):
    lines = site.stream("/generate", {"text": "é", "stream": True})
    assert len(lines) > 1
    whole = "naïve 日本語 😀"
    for before, line in itertools.pairwise(lines):
        assert line["text"].startswith(before["text"])
        assert line["output_ids"][: len(before["output_ids"])] == before["output_ids"]
    assert lines[-1]["text"] == whole
    assert all("meta_info" in line and "index" not in line for line in lines)
    assert [line["meta_info"]["finish_reason"] is None for line in lines[:-1]] == [True] * (
        len(lines) - 1
    )
    assert lines[-1]["meta_info"]["finish_reason"]["type"] == "stop"
    plain = site.post("/generate", {"text": "é"})
    assert (plain["text"], plain["output_ids"]) == (lines[-1]["text"], lines[-1]["output_ids"])


def test_stream_of_prefill(site):
    body = {"text": "abc", "stream": True, "sampling_params": {"max_new_tokens": 0}}
    (line,) = site.stream("/generate", body)
    assert line["text"] == ""
    assert line["meta_info"]["finish_reason"]["type"] == "length"


def test_stream_of_a_list_with_n(site):
    site.engine.replies |= {"one": "1111 1111", "two": "2222 2222 2222"}
    body = {"text": ["one", "two"], "stream": True, "sampling_params": {"n": 2}}
    last = {line["index"]: line for line in site.stream("/generate", body)}
    assert {index: line["text"] for index, line in last.items()} == {
        0: "1111 1111",
        1: "1111 1111",
        2: "2222 2222 2222",
        3: "2222 2222 2222",
    }
    assert all(line["meta_info"]["finish_reason"] for line in last.values())


def test_stream_logprobs_are_cumulative(site):
    body = {"text": "hi", "stream": True, "return_logprob": True, "logprob_start_len": 0}
    lines = site.stream("/generate", body)
    for line in lines:
        info = line["meta_info"]
        assert len(info["output_token_logprobs"]) == len(line["output_ids"])
        assert len(info["input_token_logprobs"]) == 2


def test_stream_that_fails_at_once_has_a_status(site):
    assert site.fail("/generate", {"text": "long", "stream": True})[0] == 400
    assert site.fail("/generate", {"text": ["a", "full"], "stream": True})[0] == 429
    assert site.fail("/generate", {"text": "bug", "stream": True})[0] == 500


def test_segments(site):
    segments = [
        {"role": "user", "at": "begin"},
        {"content": "hi <b>"},
        {"role": "user", "at": "end"},
        {"text": "x"},
        {"ids": [65, 66], "skip_bytes": 0},
    ]
    answer = site.post("/generate", {"segments": segments, "sampling_params": {"max_tokens": 2}})
    assert answer["segments"] == [{"ids": [84, 104], "skip_bytes": 0}]
    assert answer["rendered"] == ["<user begin>", "<user end>"]
    assert fake.text_of(asked(site).prompt) == "<user begin>hi <b><user end>xAB"
    lines = site.stream(
        "/generate",
        {"segments": segments, "stream": True, "sampling_params": {"max_tokens": 8}},
    )
    assert lines[-1]["segments"] == [{"ids": [ord(c) for c in "The quic"], "skip_bytes": 0}]
    assert all(line["rendered"] == ["<user begin>", "<user end>"] for line in lines)


# ---- score ----


def test_score(site):
    body = {"text": "is it? ", "choices": ["yes", "no"], "unconditional": True, "cache_salt": "s"}
    body["priority"] = 2
    answer = site.post("/score", body)
    assert answer == {
        "choices": [
            {"token_ids": [121, 101, 115], "logprobs": [-1.0] * 3, "unconditional": [-2.0] * 3},
            {"token_ids": [110, 111], "logprobs": [-1.0] * 2, "unconditional": [-2.0] * 2},
        ],
        "prompt_tokens": 7,
        "cached_tokens": 1,
        "rendered": [],
    }
    assert (site.engine.scored[-1].cache_salt, site.engine.scored[-1].priority) == ("s", 2)
    body = {"segments": [{"content": "a"}], "choices": ["b"]}
    assert site.post("/score", body)["choices"][0]["unconditional"] is None


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"text": "a"}, "choices"),
        ({"text": "a", "choices": "b"}, "choices: expected `array`"),
        ({"text": "a", "choices": []}, "choices: there is none"),
        ({"text": "a", "choices": ["b"], "x": 1}, "unknown field `x`"),
        ({"text": ["a"], "choices": ["b"]}, "text: one prompt a call"),
        ({"choices": ["b"]}, "exactly one of"),
    ],
)
def test_wrong_scores(site, body, words):
    status, error = site.fail("/score", body)
    assert status == 400
    assert words in error["message"]


def test_fixture_is_what_json_says(site):
    """The lines are compact JSON objects behind `data: `, and nothing else."""
    lines = site.lines("/generate", {"text": "hi", "stream": True})
    assert lines[-1] == "data: [DONE]"
    assert all(isinstance(json.loads(line.removeprefix("data: ")), dict) for line in lines[:-1])
