"""An engine over another backend of constraints: what it needs of one is what `backend` says."""

import os
import re
import sys
from pathlib import Path

import pytest

import boughs
from boughs.lang.errors import GrammarError
from boughs.runtime.constraints import backend

FIXTURES = Path(__file__).parents[1] / "fixtures"
LONG = "one long constant [ab]{2} and another one"


@pytest.fixture(scope="module")
def engine(tiny_model):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "MODULE", "regex_backend")
        patch.syspath_prepend(FIXTURES)
        paths = [str(FIXTURES), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))  # of the process that tries grammars
        with boughs.Engine(
            model_path=tiny_model, in_process=True, check_invariants=True, kv_memory="16M"
        ) as engine:
            yield engine
            assert sys.modules["regex_backend"].RegexBackend.version


def ask(engine, prompt="Once upon a time", **params):
    return engine.generate(prompt, {"temperature": 40, "seed": 2, **params})


def test_outputs_match_and_end_where_their_grammar_does(engine):
    for answer in ask(engine, regex="[ab]{3}c?", n=5):
        assert re.fullmatch("[ab]{3}c?", answer["text"])
        assert answer["meta_info"]["finish_reason"]["type"] == "stop"
    assert ask(engine, choices=["left", "right"])["text"] in ("left", "right")
    cut = ask(engine, regex="x{9}y", max_new_tokens=2)["meta_info"]["finish_reason"]
    assert cut["type"] == "length"
    assert cut["incomplete"]


def test_what_it_does_not_know_is_refused_by_its_own_trial(engine):
    with pytest.raises(GrammarError, match="json_schema: this backend knows regex and choices"):
        ask(engine, json_schema="{}")
    with pytest.raises(GrammarError, match=r"regex: missing \) at position 2"):
        ask(engine, regex="a(")


def test_forced_tokens_are_appended_and_taken_back_where_the_output_ends(engine):
    plain = ask(engine, regex=LONG)
    assert re.fullmatch(LONG, plain["text"])
    assert plain["meta_info"]["forced_tokens"] > 10
    noted = engine.generate(
        "Once upon a time", {"regex": LONG, "temperature": 40, "seed": 2}, return_logprob=True
    )
    assert noted["output_ids"] == plain["output_ids"]
    assert len(noted["meta_info"]["output_token_logprobs"]) == len(plain["output_ids"])
    stopped = ask(engine, regex=LONG, stop="constant")
    assert stopped["text"] == "one long "


def test_beams_fork_their_states(engine):
    params = {"regex": "[ab]{4}", "beam_width": 3, "n": 3}
    texts = [answer["text"] for answer in engine.generate("Once upon a time", params)]
    assert len({*texts}) == 3
    assert all(re.fullmatch("[ab]{4}", text) for text in texts)


def test_healing_is_a_prefix_of_a_grammar(engine):
    @boughs.function
    def write(s):
        s += "The quick brow" + boughs.gen("word", regex="n? fox(es)? ran", max_tokens=20)

    assert re.fullmatch("n? fox(es)? ran", write.run(backend=engine)["word"])
