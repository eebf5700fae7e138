"""Beam search on a tiny model equals transformers' on the same weights; `best_of` ranks choices."""

import importlib.util
import json
import urllib.error
import urllib.request
from pathlib import Path

import openai
import pytest
import torch

import boughs
from boughs import Engine, RuntimeEndpoint, gen
from boughs.lang.errors import InvalidRequest, Unservable, Unsupported

PROMPTS = [
    "The quick brown fox",
    "The quick brown fox jumps over the lazy dog. Question: how many apples are there in the",
    "Paris is the capital of France, Berlin",
]
ENDS = list(range(60, 330, 5))
"""Tokens that end an output beside the model's own: a step in seven hits one."""

SCALES = [(1.0, False), (0.0, False), (2.0, "never"), (-1.0, True), (1.0, True)]


@pytest.fixture(scope="module")
def soft_model(tmp_path_factory):
    """A model in which many tokens are likely, and no two nearly as likely."""
    path = Path(__file__).parents[1] / "fixtures" / "tiny_models.py"
    spec = importlib.util.spec_from_file_location("tiny_models", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.make_tiny_model(tmp_path_factory.mktemp("models") / "soft", seed=5, logit_std=6.0)


@pytest.fixture(scope="module")
def engine(soft_model):
    with started(soft_model) as engine:
        yield engine


def started(folder, **config):
    settings = {"kv_memory": "4M", "in_process": True, "check_invariants": True, "threads": 1}
    return Engine(folder, **{**settings, **config})


@pytest.fixture(scope="module")
def transformers_beams(soft_model):
    """What transformers finds: (ids, score) of each sequence, best first."""
    from transformers import AutoModelForCausalLM, GenerationConfig

    model = AutoModelForCausalLM.from_pretrained(soft_model, dtype=torch.float32)
    model.generation_config.eos_token_id = None

    def find(ids, width, most, n, length_penalty, early_stopping, ends=(2, *ENDS), **fields):
        prompt = torch.tensor([ids])
        out = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            generation_config=GenerationConfig(
                num_beams=width,
                num_return_sequences=n,
                do_sample=False,
                max_new_tokens=most,
                length_penalty=length_penalty,
                early_stopping=early_stopping,
                eos_token_id=list(ends),
                pad_token_id=0,
                output_scores=True,
                return_dict_in_generate=True,
                **fields,
            ),
        )
        made = []
        for sequence, score in zip(out.sequences.tolist(), out.sequences_scores, strict=True):
            new = sequence[len(ids) :]
            length = next((at for at, token in enumerate(new, 1) if token in ends), len(new))
            made.append((new[:length], float(score)))
        return made

    return find


def params(width, length_penalty=1.0, early_stopping=False, most=10, **fields):
    return {
        "beam_width": width,
        "n": width,
        "length_penalty": length_penalty,
        "early_stopping": early_stopping,
        "max_new_tokens": most,
        "stop_token_ids": ENDS,
        **fields,
    }


def assert_equal(answers, expected):
    assert [a["output_ids"] for a in answers] == [ids for ids, _ in expected]
    scores = [a["meta_info"]["sequence_score"] for a in answers]
    assert scores == pytest.approx([score for _, score in expected], abs=1e-3)


@pytest.mark.parametrize(("length_penalty", "early_stopping"), SCALES)
@pytest.mark.parametrize("width", [2, 4, 7])
def test_it_equals_transformers(engine, transformers_beams, width, length_penalty, early_stopping):
    ended = set()
    for prompt in PROMPTS:
        ids = engine.endpoint.tokenizer.encode(prompt, "start")
        answers = engine.generate(prompt, params(width, length_penalty, early_stopping))
        expected = transformers_beams(ids, width, 10, width, length_penalty, early_stopping)
        assert_equal(answers, expected)
        for answer in answers:
            meta, reason = answer["meta_info"], answer["meta_info"]["finish_reason"]
            last, length = answer["output_ids"][-1], len(answer["output_ids"])
            assert reason["type"] == ("stop" if last in {2, *ENDS} else "length")
            assert reason.get("matched", last) == last
            assert (meta["prompt_tokens"], meta["completion_tokens"]) == (len(ids), length)
            whole = meta["sequence_score"] * length**length_penalty
            assert meta["cumulative_logprob"] == pytest.approx(whole, abs=1e-3)
            ended.add(reason["type"])
    assert "stop" in ended


def test_penalties_and_a_minimum_equal_transformers(engine, transformers_beams):
    ids = engine.endpoint.tokenizer.encode(PROMPTS[0], "start")
    given = params(4, repetition_penalty=1.4, min_new_tokens=4, logit_bias={"40": 3.0, "41": -3})
    expected = transformers_beams(
        ids, 4, 10, 4, 1.0, False, repetition_penalty=1.4, min_new_tokens=4,
        sequence_bias={(40,): 3.0, (41,): -3.0},
    )  # fmt: skip
    assert_equal(engine.generate(PROMPTS[0], given), expected)


def test_one_beam_is_greedy_decoding(engine):
    given = {"max_new_tokens": 10, "repetition_penalty": 1.3}
    greedy = engine.generate(PROMPTS[0], {**given, "temperature": 0})
    assert (
        engine.generate(PROMPTS[0], {**given, "beam_width": 1})["output_ids"]
        == (greedy["output_ids"])
    )


@pytest.mark.parametrize(
    "config",
    [
        {"max_batched_tokens": 5, "page_size": 4},
        {"disable_radix_cache": True, "page_size": 8},
        {"page_size": 1},
        {"max_batched_tokens": 7, "page_size": 16, "schedule_policy": "fcfs"},
    ],
)
def test_chunks_pages_a_warm_tree_and_others_in_the_batch_change_nothing(
    soft_model, engine, config
):
    want = [engine.generate(prompt, params(4)) for prompt in PROMPTS]
    greedy = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
    others = [engine.generate(prompt, greedy)["output_ids"] for prompt in PROMPTS]
    with started(soft_model, **config) as small:
        for _ in range(2):  # cold, and warm
            answers = small.generate(PROMPTS * 2, [params(4)] * 3 + [greedy] * 3)
            found, plain = answers[:12], answers[12:]
            for got, expected in zip(fours(found), want, strict=True):
                assert_same(got, expected)
            assert [a["output_ids"] for a in plain] == others
        stats = small.stats()
        assert stats["running"] == stats["waiting"] == 0


def test_a_pool_that_retracts_changes_nothing(soft_model, engine):
    given = params(4, most=16, min_new_tokens=12)
    want = [engine.generate(prompt, given) for prompt in PROMPTS]
    page = 2 * 2 * 4 * 2 * 16 * 4  # layers, K and V, rows, heads, width, bytes
    with started(soft_model, page_size=4, kv_memory=str(40 * page)) as small:
        answers = small.generate(PROMPTS * 2, [given] * 6)
        for got, expected in zip(fours(answers), want * 2, strict=True):
            assert_same(got, expected)
        assert small.stats()["retractions"] > 0


def fours(answers):
    return [answers[at : at + 4] for at in range(0, len(answers), 4)]


def assert_same(got, expected):
    assert [a["output_ids"] for a in got] == [a["output_ids"] for a in expected]
    assert [a["text"] for a in got] == [a["text"] for a in expected]


def test_fewer_outputs_than_beams_are_the_first_of_them(engine):
    every = engine.generate(PROMPTS[0], params(4))
    two = engine.generate(PROMPTS[0], params(4, n=2))
    one = engine.generate(PROMPTS[0], params(4, n=1))
    assert_same(two, every[:2])
    assert one["output_ids"] == every[0]["output_ids"]


def test_logprobs_are_those_of_a_score(engine):
    """The logprobs of an output are what the model gives to it as a prompt."""
    (best, *_) = engine.generate(
        PROMPTS[0], params(3), return_logprob=True, top_logprobs_num=2, logprob_start_len=0
    )
    ids = engine.endpoint.tokenizer.encode(PROMPTS[0], "start")
    whole = engine.generate(
        input_ids=ids + best["output_ids"],
        sampling_params={"max_new_tokens": 0},
        return_logprob=True,
        logprob_start_len=0,
    )
    entries = [entry[0] for entry in whole["meta_info"]["input_token_logprobs"]]
    got = best["meta_info"]
    assert [e[0] for e in got["output_token_logprobs"]] == pytest.approx(
        entries[len(ids) :], abs=1e-3
    )
    assert [e[0] for e in got["input_token_logprobs"]][1:] == pytest.approx(
        entries[1 : len(ids)], abs=1e-3
    )
    assert sum(e[0] for e in got["output_token_logprobs"]) == pytest.approx(
        got["cumulative_logprob"], abs=1e-3
    )
    assert all(len(top) == 2 for top in got["output_top_logprobs"])


def test_a_stream_has_each_output_once_at_its_end(engine):
    whole = engine.generate(PROMPTS[0], params(3))
    pieces = list(engine.generate(PROMPTS[0], params(3), stream=True))
    assert [piece["index"] for piece in pieces] == [0, 1, 2]
    assert_same(pieces, whole)
    assert [piece["meta_info"]["finish_reason"] for piece in pieces] == [
        answer["meta_info"]["finish_reason"] for answer in whole
    ]


def test_what_can_never_fit_is_refused(soft_model):
    page = 2 * 2 * 4 * 2 * 16 * 4
    with started(
        soft_model, page_size=4, kv_memory=str(14 * page), max_running_requests=64
    ) as small:
        with pytest.raises(Unservable, match="beam_width: a prompt of"):
            small.generate(PROMPTS[1], params(12, most=4))
        with pytest.raises(InvalidRequest, match="beam_width: 128 beams"):
            small.generate(PROMPTS[0], {"beam_width": 128})
        small.generate(PROMPTS[0], params(2, most=4))


@pytest.mark.parametrize(
    ("fields", "kind", "named"),
    [
        ({"length_penalty": 2.0}, InvalidRequest, "length_penalty needs beam_width"),
        ({"early_stopping": True}, InvalidRequest, "early_stopping needs beam_width"),
        ({"beam_width": 2, "top_p": 0.5}, Unsupported, "top_p"),
        ({"n": 3, "best_of": 2}, InvalidRequest, "best_of must be at least n"),
    ],
)
def test_what_cannot_stand_together(engine, fields, kind, named):
    with pytest.raises(kind, match=named):
        engine.generate(PROMPTS[0], fields)


# ---- best_of ----

SAMPLED = {"temperature": 1.0, "max_new_tokens": 12, "seed": 11, "stop": ["e"]}


def ranked(engine, count):
    """All choices of a seed, the most likely first."""
    made = engine.generate(PROMPTS[0], {**SAMPLED, "n": count}, return_logprob=True)

    def total(answer):
        return sum(entry[0] for entry in answer["meta_info"]["output_token_logprobs"])

    return sorted(made, key=total, reverse=True), total


@pytest.mark.parametrize("n", [1, 2, 5])
def test_best_of_gives_the_most_likely_choices(engine, n):
    order, total = ranked(engine, 6)
    answers = engine.generate(PROMPTS[0], {**SAMPLED, "n": n, "best_of": 6})
    answers = answers if n > 1 else [answers]
    assert_same(answers, order[:n])
    for answer, expected in zip(answers, order, strict=False):
        meta = answer["meta_info"]
        assert "output_token_logprobs" not in meta
        assert meta["cumulative_logprob"] == pytest.approx(total(expected), abs=1e-3)
        assert meta["finish_reason"] == expected["meta_info"]["finish_reason"]
    dropped = sum(a["meta_info"]["completion_tokens"] for a in order[n:])
    assert answers[0]["meta_info"]["discarded_tokens"] == dropped
    assert engine.stats()["in_flight"] == 0


def test_best_of_gives_logprobs_where_they_are_asked_for(engine):
    order, _ = ranked(engine, 4)
    answer = engine.generate(PROMPTS[0], {**SAMPLED, "best_of": 4}, return_logprob=True)
    want = order[0]["meta_info"]["output_token_logprobs"]
    got = answer["meta_info"]["output_token_logprobs"]
    assert [entry[1] for entry in got] == [entry[1] for entry in want]


def test_best_of_that_is_n_drops_nothing(engine):
    plain = engine.generate(PROMPTS[0], {**SAMPLED, "n": 3})
    assert_same(engine.generate(PROMPTS[0], {**SAMPLED, "n": 3, "best_of": 3}), plain)


def test_a_stream_of_choices_that_are_still_to_be_ranked_is_refused(engine):
    with pytest.raises(InvalidRequest, match=r"sampling_params\.best_of"):
        engine.generate(PROMPTS[0], {**SAMPLED, "best_of": 2}, stream=True)


# ---- the language, and a server ----


@boughs.function
def searching(s):
    s += PROMPTS[0]
    s += gen("beams", max_tokens=8, n=2, beam_width=4, length_penalty=0.5)


@boughs.function
def ranking(s):
    s += PROMPTS[0]
    s += gen("best", max_tokens=8, temperature=1.0, seed=3, best_of=5)


@pytest.fixture(scope="module")
def server(tiny_server):
    return tiny_server.url


@pytest.fixture(scope="module")
def tiny_engine(tiny_model):
    with started(tiny_model) as engine:
        yield engine


def test_a_program_searches_in_process_and_on_a_server(server, tiny_engine):
    want = tiny_engine.generate(
        PROMPTS[0],
        {"max_new_tokens": 8, "n": 2, "beam_width": 4, "length_penalty": 0.5},
    )
    endpoint = RuntimeEndpoint(server)
    try:
        for backend in (tiny_engine, endpoint):
            state = searching.run(backend=backend)
            assert state["beams"] == [answer["text"] for answer in want]
            metas = state.get_meta_info("beams")
            assert [meta["sequence_score"] for meta in metas] == pytest.approx(
                [answer["meta_info"]["sequence_score"] for answer in want], abs=1e-3
            )
            usage = state.usage
            assert usage.completion_tokens == sum(m["completion_tokens"] for m in metas)
    finally:
        endpoint.close()


def test_a_program_ranks_in_process_and_on_a_server(server, tiny_engine):
    endpoint = RuntimeEndpoint(server)
    try:
        states = [ranking.run(backend=backend) for backend in (tiny_engine, endpoint)]
    finally:
        endpoint.close()
    assert states[0]["best"] == states[1]["best"]
    for state in states:
        meta = state.get_meta_info("best")
        tokens = meta["completion_tokens"] + meta["discarded_tokens"]
        assert state.usage.completion_tokens == tokens
        assert meta["discarded_tokens"] > 0


def post(url, body):
    """The status and the JSON, or the events, of an answer of `/generate`."""
    request = urllib.request.Request(
        url + "/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            raw = response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())
    if not body.get("stream"):
        return 200, json.loads(raw)
    lines = [line.removeprefix("data: ") for line in raw.splitlines() if line.startswith("data: ")]
    return 200, [json.loads(line) for line in lines if line != "[DONE]"]


def test_sglangs_wire_searches_and_ranks(server, tiny_engine):
    given = {"max_new_tokens": 8, "n": 2, "beam_width": 4, "length_penalty": 0.5}
    want = tiny_engine.generate(PROMPTS[0], given)
    _, whole = post(server, {"text": PROMPTS[0], "sampling_params": given})
    assert_same(whole, want)
    _, pieces = post(server, {"text": PROMPTS[0], "sampling_params": given, "stream": True})
    assert [piece["index"] for piece in pieces] == [0, 1]
    assert_same(pieces, want)
    ranked = {"max_new_tokens": 8, "seed": 3, "best_of": 5}
    _, best = post(server, {"text": PROMPTS[0], "sampling_params": ranked})
    assert best["output_ids"] == tiny_engine.generate(PROMPTS[0], ranked)["output_ids"]
    for given, stream, named in (
        (ranked, True, "best_of"),
        ({"beam_width": 4, "min_p": 0.5}, False, "min_p"),
        ({"length_penalty": 2}, False, "length_penalty"),
    ):
        body = {"text": PROMPTS[0], "sampling_params": given, "stream": stream}
        status, error = post(server, body)
        assert status == 400
        assert named in error["error"]["message"]


def test_openai_clients_search_and_rank(server, tiny_engine):
    with openai.OpenAI(base_url=server + "/v1", api_key="x", max_retries=0) as client:
        common = {"model": "default", "prompt": PROMPTS[0], "max_tokens": 8}
        found = client.completions.create(
            **common, n=2, extra_body={"beam_width": 4, "length_penalty": 0.5}
        )
        want = tiny_engine.generate(
            PROMPTS[0], {"max_new_tokens": 8, "n": 2, "beam_width": 4, "length_penalty": 0.5}
        )
        assert [choice.text for choice in found.choices] == [answer["text"] for answer in want]
        made = sum(answer["meta_info"]["completion_tokens"] for answer in want)
        assert found.usage.completion_tokens == made

        best = client.completions.create(
            **common, seed=3, best_of=5, extra_body={"ignore_eos": True}
        )
        assert len(best.choices) == 1
        assert best.choices[0].logprobs is None
        assert best.usage.completion_tokens == 5 * 8
        with pytest.raises(openai.BadRequestError, match="best_of"):
            client.completions.create(**common, best_of=2, stream=True)
        with pytest.raises(openai.BadRequestError, match="best_of"):
            client.completions.create(**common, n=3, best_of=2)
        chat = client.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": "Hi"}],
            max_tokens=4,
            n=2,
            extra_body={"beam_width": 2},
        )
        assert len(chat.choices) == 2
        pieces = list(
            client.completions.create(**common, n=2, stream=True, extra_body={"beam_width": 4})
        )
        texts = {}
        for piece in pieces:
            for choice in piece.choices:
                texts[choice.index] = texts.get(choice.index, "") + choice.text
        plain = client.completions.create(**common, n=2, extra_body={"beam_width": 4})
        assert texts == {choice.index: choice.text for choice in plain.choices}
