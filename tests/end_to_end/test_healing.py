"""Token healing, held against the same done by hand over the engine's own next tokens."""

import asyncio

import msgspec
import pytest
import regex
from hypothesis import given, settings, strategies as st

import boughs
from boughs.lang import loop
from boughs.lang.requests import GenerateRequest
from boughs.lang.results import collect
from boughs.lang.sampling import SamplingParams
from boughs.lang.segments import Ids, Text
from boughs.runtime.front.healing import given_back
from boughs.runtime.front.prompt import encode_segments
from boughs.runtime.front.tokenizer import Tokenizer
from boughs.runtime.messages import Submit

GREEDY = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine(tiny_model):
    with boughs.Engine(
        model_path=tiny_model, in_process=True, check_invariants=True, kv_memory="32M"
    ) as engine:
        yield engine


@pytest.fixture(scope="module")
def tokenizer(tiny_model):
    return Tokenizer.load(tiny_model)


def by_hand(engine, tokenizer, text, count):
    """What healing is: the prompt's end is given back, and no token may leave its text."""
    ids = encode_segments(tokenizer, [Text(text)])
    prompt, back = ids[: len(ids) - count], ids[len(ids) - count :]
    rest = b"".join(map(tokenizer.token_bytes, back))
    made = []
    while rest:
        fitting = [
            id_
            for id_, raw in enumerate(tokenizer.bytes_of)
            if raw and (raw.startswith(rest) or rest.startswith(raw)) and id_ not in {0, 1, 2}
        ]
        params = {**GREEDY, "max_new_tokens": 1, "allowed_token_ids": fitting}
        (token,) = engine.generate(input_ids=prompt, sampling_params=params)["output_ids"]
        raw = tokenizer.token_bytes(token)
        prompt = [*prompt, token]
        if len(raw) > len(rest):
            made.append(token)
        rest = rest[len(raw) :]
    params = {**GREEDY, "max_new_tokens": 6 - len(made)}
    return made + engine.generate(input_ids=prompt, sampling_params=params)["output_ids"]


texts = st.text("the in a\nr:/.ä日", min_size=2, max_size=14)


@pytest.mark.parametrize("size", range(24, 42))
def test_a_token_that_was_given_back_may_need_a_page(engine, tokenizer, size):
    """The prompt ends all about a border of pages, and its end is spelt by itself."""
    text = "x" * size + " th"
    ids = encode_segments(tokenizer, [Text(text)])
    assert given_back(tokenizer, [Text(text)], ids)
    answer = engine.generate(text, {**GREEDY, "regex": "[0-9]{5}"}, heal=True)
    assert regex.fullmatch("[0-9]{5}", answer["text"])


@settings(max_examples=60, deadline=None)
@given(texts)
def test_the_output_is_what_spelling_by_hand_gives(engine, tokenizer, text):
    ids = encode_segments(tokenizer, [Text(text)])
    count = given_back(tokenizer, [Text(text)], ids)
    answer = engine.generate(text, GREEDY, heal=True)
    assert answer["output_ids"] == by_hand(engine, tokenizer, text, count)
    assert answer["meta_info"]["prompt_tokens"] == len(ids)
    assert answer["meta_info"]["completion_tokens"] == 6


def test_a_token_that_spells_itself_costs_no_step(engine, tokenizer):
    """It is computed in the hope of that; where another is chosen nothing is lost."""
    found = {True: 0, False: 0}
    for text in (
        f"{a}{b}" for a in ("the", "in a", "d:", "9", "x") for b in "abcdefghijklmnopqrstu"
    ):
        *prompt, back = encode_segments(tokenizer, [Text(text)])
        if given_back(tokenizer, [Text(text)], [*prompt, back]) != 1:
            continue
        by_itself = by_hand(engine, tokenizer, text, 1)
        plain = engine.generate(input_ids=[*prompt, back], sampling_params=GREEDY)
        answer = engine.generate(text, GREEDY, heal=True)
        assert answer["output_ids"] == by_itself
        right = by_itself == plain["output_ids"]
        found[right] += 1
        if right:
            assert answer["meta_info"]["forward_steps"] == 6
    assert all(found.values())


WAYS = (
    {"page_size": 1, "max_batched_tokens": 2},
    {"page_size": 4, "max_batched_tokens": 7, "kv_memory": 48},
    {"page_size": 16, "disable_radix_cache": True},
)


@pytest.mark.parametrize("way", WAYS)
def test_chunks_pages_and_retraction_move_no_token(engine, tiny_model, way):
    """With a page border, a chunk's end or a lack of pages at the guess or just before it."""
    prompts = ["the in a: " * i + end for i in range(6) for end in ("th", "in a", "r:", "9 th")]
    params = [
        {"max_new_tokens": 9, "seed": i, "ignore_eos": True, "frequency_penalty": 0.5 * (i % 2)}
        for i in range(len(prompts))
    ]
    tokens = way.get("kv_memory", 4096)
    memory = (32 << 20) // engine.get_server_info()["pool_tokens"] * tokens
    config = {**way, "kv_memory": str(memory)}
    with boughs.Engine(
        model_path=tiny_model, in_process=True, check_invariants=True, **config
    ) as other:
        together = other.generate(prompts, params, heal=True)
        again = other.generate(prompts, params, heal=True)
        retracted = other.get_server_info()["stats"]["retractions"]
        assert bool(retracted) == ("kv_memory" in way)
    for prompt, one, *answers in zip(prompts, params, together, again, strict=True):
        alone = engine.generate(prompt, one, heal=True)
        for answer in answers:
            assert answer["output_ids"] == alone["output_ids"]
            assert answer["text"] == alone["text"]


@settings(max_examples=30, deadline=None)
@given(texts, st.integers(1, 4), st.sampled_from(["[ a-z]{3,9}", "(the|in|::?)+", r"\w+\."]))
def test_a_grammar_begins_behind_the_prompt(engine, prompt, seed, pattern):
    params = {"max_new_tokens": 24, "temperature": 1.5, "seed": seed, "regex": pattern}
    answer = engine.generate(prompt, params, heal=True)
    whole = answer["meta_info"]["finish_reason"]["type"] == "stop"
    text = answer["text"].rstrip("\ufffd")  # of a character that was cut
    assert regex.fullmatch(pattern, text, partial=not whole)


@pytest.fixture(scope="module")
def narrow(tiny_model):
    """An engine whose context is soon full."""
    with boughs.Engine(
        model_path=tiny_model, in_process=True, check_invariants=True, context_length=24
    ) as engine:
        yield engine


@pytest.mark.parametrize("grammar", [{}, {"regex": "[a-z]+"}])
@pytest.mark.parametrize("room", [1, 2, 3])
def test_an_end_spelt_in_more_tokens_may_fill_the_context(narrow, tokenizer, room, grammar):
    """Then there is no output, or less of it: the request ends, and the core does not."""
    prompts, params = [], []
    for end in (" upon", " would", " woman", " old", " there", " think"):
        ids = encode_segments(tokenizer, [Text("9" * 30 + end)])
        whole = tokenizer.token_bytes(ids[-1])
        text = "9" * (24 - room - len(ids) + 30) + end
        ids = encode_segments(tokenizer, [Text(text)])
        assert len(ids) == 24 - room
        if given_back(tokenizer, [Text(text)], ids) != 1:
            continue
        for id_, raw in enumerate(tokenizer.bytes_of):
            if raw and whole.startswith(raw) and raw != whole:
                prompts.append(text)
                params.append({**GREEDY, **grammar, "logit_bias": {id_: 100}})
    answers = narrow.generate(prompts, params, heal=True)
    lengths = [len(answer["output_ids"]) for answer in answers]
    assert min(lengths) < room
    for length, answer in zip(lengths, answers, strict=True):
        finish = answer["meta_info"]["finish_reason"]
        assert length <= room
        assert finish["type"] == "length"
        assert finish.get("incomplete", False) == (bool(grammar) and not answer["text"])


KINDS = [
    ("regex", "[0-9]{3}", "[0-9]{3}"),
    ("choices", ["yes", "no"], "yes|no"),
    ("json_schema", {"type": "integer", "minimum": 3, "maximum": 5}, "[345]"),
    ("ebnf", 'root ::= "a" | "b" "c"', "a|bc"),
    ("ebnf", "start: /[0-9]{2}/", "[0-9]{2}"),
    ("lark", 'start: part\npart: "(" part ")" | "x"', r"\(*x\)*"),
    ("lark", '%llguidance {"no_forcing": true}\nstart: "ab" /[c-d]{2}/', "ab[cd]{2}"),
    ("lark", 'start: "a" %json {"type": "integer", "minimum": 1, "maximum": 3}', "a[123]"),
    ("lark", ' {"grammars": [{"name": "a b", "lark_grammar": "start: \\"x\\""}]}', "x"),
    (
        "lark",
        '{"grammars": [{"lark_grammar": "start: @whole0"}, '
        '{"name": "whole0", "json_schema": {"const": 7}}]}',
        "7",
    ),
    (
        "structural_tag",
        {"format": {"type": "sequence", "elements": [
            {"type": "const_string", "value": "q"},
            {"type": "grammar", "grammar": 'root ::= "z"'},
        ]}},
        "qz",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "source", "pattern"), KINDS)
def test_every_kind_of_grammar_begins_behind_the_prompt(engine, tokenizer, kind, source, pattern):
    text = 'the "\n '
    assert given_back(tokenizer, [Text(text)], encode_segments(tokenizer, [Text(text)]))
    answer = engine.generate(text, {kind: source, "max_new_tokens": 40, "seed": 1}, heal=True)
    assert regex.fullmatch(pattern, answer["text"])


@pytest.mark.parametrize("grammar", [{}, {"regex": "[a-z]+"}])
def test_what_is_forbidden_is_not_to_be_spelt_anew(engine, tokenizer, grammar):
    """Lists of tokens are of the output: the prompt's end is no reason to fail."""
    (back,) = encode_segments(tokenizer, [Text("the ")])[-1:]
    (letter,) = tokenizer.encode("d", "ids")
    for lists in ({"allowed_token_ids": [letter]}, {"bad_words": [" "]}):
        params = {**GREEDY, **grammar, **lists}
        healed, plain = (engine.generate("the ", params, heal=heal) for heal in (True, False))
        assert healed["output_ids"] == plain["output_ids"]
        assert back not in healed["output_ids"]


async def ask(engine, prompt, **params):
    """The whole answer, and the text that the chunks brought."""
    request = GenerateRequest(
        prompt=prompt, params=SamplingParams(**params), heal=True, return_logprob=True
    )
    chunks = [chunk async for chunk in engine.endpoint.generate(request)]

    async def again():
        for chunk in chunks:
            yield chunk

    return (await collect(again()))[0], "".join(chunk.text for chunk in chunks)


@settings(max_examples=40, deadline=None)
@given(texts, st.integers(0, 5), st.lists(st.sampled_from(["e", " ", "in", "ä"]), max_size=2))
def test_a_state_goes_on_with_the_tokens_that_were_made(engine, tokenizer, text, seed, stops):
    """The next prompt is the tokens that the model saw, however the output was cut."""
    params = {"max_new_tokens": 7, "seed": seed, "stop": tuple(stops), "ignore_eos": True}
    answer, streamed = loop.run(ask(engine, [Text(text)], **params))
    assert streamed == answer.text
    assert len(answer.logprobs) == len(answer.output_ids) == answer.completion_tokens
    state = [Text(text), *answer.segments]
    ids = encode_segments(tokenizer, state)
    shown = [id_ for id_ in ids if id_ not in tokenizer.special_ids]
    raw = b"".join(map(tokenizer.token_bytes, shown)).decode("utf-8", "replace")
    kept = raw.removeprefix(text)
    assert kept.startswith(answer.text) or answer.text.endswith("\ufffd")
    made = [segment for segment in answer.segments if isinstance(segment, Ids)]
    if made and not isinstance(answer.segments[-1], Text):
        assert ids[-len(made[0].ids) :] == made[0].ids


def test_every_way_of_running_gives_the_same(engine):
    """Alone and together, streamed and not, and with several choices."""
    prompts = ["the th", "in an i", "a: the\n", "there in"]
    params = {"max_new_tokens": 5, "seed": 3, "ignore_eos": True, "n": 2}
    together = engine.generate(prompts, params, heal=True)
    alone = [answer for prompt in prompts for answer in engine.generate(prompt, params, heal=True)]
    assert [a["output_ids"] for a in together] == [a["output_ids"] for a in alone]
    one = {**params, "n": 1}
    *_, last = engine.generate(prompts[0], one, stream=True, heal=True)
    assert last["output_ids"] == alone[0]["output_ids"]


@settings(max_examples=20, deadline=None)
@given(texts, st.integers(0, 3), st.sampled_from([None, "[ a-z]+"]))
def test_a_core_that_takes_over_goes_on_where_the_other_stopped(engine, tokenizer, text, seed, re):
    """What a new core is told when the first dies after any token gives the same rest."""
    params = SamplingParams(
        max_new_tokens=6, seed=seed, ignore_eos=True, regex=re, frequency_penalty=1.5
    )
    ids = encode_segments(tokenizer, [Text(text)])
    count = given_back(tokenizer, [Text(text)], ids)
    back = b"".join(map(tokenizer.token_bytes, ids[len(ids) - count :])).decode()
    prompt, end = ids[: len(ids) - count], ids[len(ids) - count :]
    message = Submit(key=0, prompt_ids=prompt, params=params, heal=back, given_back=end)
    whole = loop.run(run_in_core(engine, message))
    for upto in range(len(whole) + 1):
        made = [token for token, _ in whole[:upto]]
        healed = sum(in_prefix for _, in_prefix in whole[:upto])
        again = msgspec.structs.replace(message, output_ids=made, healed=healed)
        assert loop.run(run_in_core(engine, again)) == whole[upto:]


async def run_in_core(engine, message):
    """The tokens that a submission makes, and whether each spells the prompt's end alone."""
    outputs = asyncio.Queue()
    engine.endpoint._core.submit(msgspec.structs.replace(message), outputs.put_nowait)
    made = []
    while True:
        output = await outputs.get()
        made += [(token, at < output.healed) for at, token in enumerate(output.ids)]
        if output.finish is not None:
            return made


@pytest.fixture(scope="module")
def demo(demo_model):
    with boughs.Engine(model_path=demo_model, in_process=True) as engine:
        yield engine


class TestPrograms:
    """On the demo model, where a border in the wrong place shows."""

    def test_a_url_goes_on_as_the_model_knows_it(self, demo):
        @boughs.function
        def link(s, heal):
            s += 'The link is <a href="http:' + boughs.gen("x", 8, temperature=0, heal=heal)

        healed, plain = link.run(heal=True, backend=demo), link.run(heal=False, backend=demo)
        assert healed["x"].startswith("//www.")
        assert healed["x"] != plain["x"]

    def test_a_space_at_the_end_does_no_harm(self, demo):
        @boughs.function
        def capital(s, border):
            s += f"The capital of France is{border}" + boughs.gen("x", 8, temperature=0)

        assert capital.run(" ", backend=demo)["x"] == capital.run("", backend=demo)["x"].lstrip()
        unhealed = capital.run(" ", backend=demo, heal=False)
        assert unhealed["x"] != capital.run(" ", backend=demo)["x"]

    def test_branches_are_joined_where_their_text_begins_within_a_token(self, demo):
        @boughs.function
        def links(s):
            s += "A link is http:"
            branches = s.fork(2)
            for seed, branch in enumerate(branches):
                branch += boughs.gen("x", 6, seed=seed)
            branches.join("concate_and_append")
            s += boughs.gen("y", 4, temperature=0)

        state = links.run(backend=demo)
        assert state.text() == "A link is http:" + "".join(state["x"]) + state["y"]

    def test_a_turn_that_was_healed_is_cached_for_the_next(self, demo):
        @boughs.function
        def two(s):
            s += "A link is http:" + boughs.gen("x", 8, temperature=0)
            s += boughs.gen("y", 4, temperature=0)

        demo.flush_cache()
        state = two.run(backend=demo)
        first, second = state.get_meta_info("x"), state.get_meta_info("y")
        assert second["cached_tokens"] >= first["prompt_tokens"] + first["completion_tokens"] - 2
