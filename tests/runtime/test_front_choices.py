"""Beam search and `best_of` in the front, over a core that searches by rote."""

import asyncio
import importlib.util
from pathlib import Path

import pytest

from boughs.lang.errors import InvalidRequest, RequestTimeout, Unservable
from boughs.lang.requests import GenerateRequest
from boughs.lang.results import collect
from boughs.lang.sampling import SamplingParams
from boughs.runtime.messages import Abort, Finish, Hypothesis, Output, Submit


def load(name):
    path = Path(__file__).parents[1] / "fixtures" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fake, fronts = load("fake_core"), load("fronts")
running_front, run, of_kind = fronts.running_front, fronts.run, fronts.of_kind
chunks_of, answers_of = fronts.chunks_of, fronts.answers_of

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

STEPS = 5
PROMPT = [70, 71, 72]


class Searcher(fake.FakeCore):
    """A fake core whose searches end after some steps; `die_after` counts these too."""

    def step(self, run):
        params = run.submit.params
        if params.beam_width is None:
            return super().step(run)
        self.made += 1
        if self.die_after is not None and self.made > self.die_after:
            raise fake.Crash(f"after {self.die_after} steps")
        run.tokens.append(0)
        output = Output(key=run.submit.key, cached_tokens=run.cached)
        if len(run.tokens) == STEPS:
            del self.running[run.submit.key]
            output.finish = "stop"
            output.hypotheses = [found(run.submit, rank) for rank in range(params.n)]
            if run.submit.prompt_logprobs_from is not None:
                output.prompt_logprobs = [None, -1.0, -2.0][run.submit.prompt_logprobs_from :]
        return output


def found(submit, rank):
    """The hypothesis of a rank: one token more for each, of which the first ends with EOS."""
    ids = fake.counting(submit.prompt_ids, rank)[: 2 + rank]
    if rank == 0:
        ids[-1] = fake.EOS
    return Hypothesis(
        ids=ids,
        sum_logprob=-1.5 * (rank + 1),
        score=-0.5 * (rank + 1),
        finish="length" if rank else "stop",
        matched=None if rank else fake.EOS,
        logprobs=[-0.25] * len(ids) if submit.logprobs else None,
        top=[[(9, -0.125)] for _ in ids] if submit.top_logprobs else None,
    )


def search(n=3, width=4, **fields):
    params = SamplingParams(beam_width=width, n=n, max_new_tokens=8)
    return GenerateRequest(prompt=PROMPT, params=params, **fields)


def text_of(front, ids):
    return b"".join(map(front.tokenizer.token_bytes, ids)).decode()


@pytest.fixture
def searcher():
    core = Searcher()
    with running_front(lambda: core) as front:
        yield front, core
        assert run(front.stats())["in_flight"] == 0


def test_each_output_is_one_chunk_best_first(searcher):
    front, core = searcher
    chunks = chunks_of(front, search())
    assert [chunk.index for chunk in chunks] == [0, 1, 2]
    assert [chunk.cumulative_logprob for chunk in chunks] == [-1.5, -3.0, -4.5]
    assert [chunk.sequence_score for chunk in chunks] == [-0.5, -1.0, -1.5]
    assert [chunk.finish.as_json() for chunk in chunks] == [
        {"type": "stop", "matched": fake.EOS},
        {"type": "length", "length": 3},
        {"type": "length", "length": 4},
    ]
    assert [chunk.completion_tokens for chunk in chunks] == [2, 3, 4]
    assert {chunk.prompt_tokens for chunk in chunks} == {3}
    assert all(chunk.logprobs is None and chunk.prompt_logprobs is None for chunk in chunks)
    (message,) = of_kind(core.log, Submit)
    assert (message.params.n, message.params.beam_width) == (3, 4)
    assert chunks[0].output_ids[-1] == fake.EOS
    assert chunks[1].text == text_of(front, chunks[1].output_ids)


def test_logprobs_are_in_every_output(searcher):
    front, _ = searcher
    request = search(return_logprob=True, top_logprobs_num=1, logprob_start_len=1)
    for chunk in chunks_of(front, request):
        assert [entry.token_id for entry in chunk.logprobs] == chunk.output_ids
        assert {entry.logprob for entry in chunk.logprobs} == {-0.25}
        assert chunk.logprobs[0].top[0][:2] == (-0.125, 9)
        assert [entry.logprob for entry in chunk.prompt_logprobs] == [-1.0, -2.0]


@pytest.mark.parametrize("dies", range(1, STEPS))
def test_a_search_starts_anew_when_its_core_dies(dies):
    cores = [Searcher(die_after=dies), Searcher()]
    made = list(cores)
    with running_front(lambda: made.pop(0)) as front:
        answers = answers_of(front, search())
    with running_front(Searcher) as front:
        calm = answers_of(front, search())
    assert [a.output_ids for a in answers] == [a.output_ids for a in calm]
    first, second = (of_kind(core.log, Submit)[0] for core in cores)
    assert second.output_ids == []
    assert second.params == first.params


def test_an_abort_ends_every_output(searcher):
    front, core = searcher
    gate = fronts.Gate()
    core.pause = gate
    gate.open.clear()

    async def aborted():
        task = asyncio.ensure_future(collect(front.generate(search(rid="r"))))
        await asyncio.sleep(0)  # it has begun, and the core waits at the gate
        assert front.abort("r")
        return await task

    answers = run(aborted())
    gate.open.set()
    assert [answer.finish.type for answer in answers] == ["abort"] * 3
    run(front.stats())
    assert len(of_kind(core.log, Abort)) == 1


def test_closing_the_iterator_or_running_out_of_time_aborts(searcher):
    front, core = searcher
    gate = fronts.Gate()
    core.pause = gate
    gate.open.clear()
    slow = GenerateRequest(
        prompt=PROMPT, params=SamplingParams(beam_width=2, max_new_tokens=4, timeout=0.05)
    )
    with pytest.raises(RequestTimeout):
        answers_of(front, slow)
    gate.open.set()
    run(front.stats())
    assert len(of_kind(core.log, Abort)) == 1


def test_what_can_never_fit_is_not_sent():
    core = Searcher(pool=64, context=512)
    with running_front(lambda: core, max_batched_tokens=8) as front:
        with pytest.raises(InvalidRequest, match="beam_width: 9 beams are more than"):
            answers_of(front, search(n=1, width=9))
        long = GenerateRequest(
            prompt=[70] * 30, params=SamplingParams(beam_width=8, max_new_tokens=4)
        )
        with pytest.raises(Unservable, match="beam_width: a prompt of 30 tokens and 8 beams"):
            answers_of(front, long)
        assert of_kind(core.log, Submit) == []


# ---- best_of ----


def likely(prompt_ids, choice):
    """Choice 2 is the likeliest: its tokens are the lowest. The others' get higher."""
    return [10 + 20 * abs(choice - 2) + at for at in range(2000)]


@pytest.fixture
def ranker():
    core = Searcher(likely)
    with running_front(lambda: core) as front:
        yield front, core
        assert run(front.stats())["in_flight"] == 0
        run(front.check())


def best(n, best_of, **fields):
    params = {"max_new_tokens": 4, **fields.pop("params", {})}
    return GenerateRequest(
        prompt=PROMPT, params=SamplingParams(n=n, best_of=best_of, **params), **fields
    )


def test_the_likeliest_choices_are_kept(ranker):
    front, core = ranker
    chunks = chunks_of(front, best(2, 4))
    assert [chunk.index for chunk in chunks] == [0, 1]
    assert [chunk.output_ids[0] for chunk in chunks] == [10, 30]
    assert all(chunk.logprobs is None for chunk in chunks)
    assert [chunk.discarded_tokens for chunk in chunks] == [8, 0]
    for chunk in chunks:
        at = len(PROMPT)
        want = sum(fake.logprob(at + i, token) for i, token in enumerate(chunk.output_ids))
        assert chunk.cumulative_logprob == pytest.approx(want)
    sent = of_kind(core.log, Submit)
    assert [message.choice for message in sent] == [0, 1, 2, 3]
    assert all(message.logprobs for message in sent)
    assert len({message.params.seed for message in sent}) == 1


def test_of_equals_the_first_submitted_is_kept(ranker):
    front, _ = ranker
    one, three = chunks_of(front, best(3, 4))[1:]
    assert (one.output_ids[0], three.output_ids[0]) == (30, 30)


def test_logprobs_stay_where_they_are_asked_for(ranker):
    front, _ = ranker
    (chunk,) = chunks_of(front, best(1, 3, return_logprob=True))
    assert [entry.token_id for entry in chunk.logprobs] == chunk.output_ids


def test_a_stop_in_the_text_ends_a_choice_and_counts(ranker):
    front, core = ranker
    stop = text_of(front, [32])  # the third token of choices 1 and 3
    request = best(1, 4, params={"max_new_tokens": 9, "stop": (stop,)})
    (chunk,) = chunks_of(front, request)
    run(front.stats())
    ends = of_kind(core.log, Finish)
    assert len(ends) == 4
    assert chunk.completion_tokens + chunk.discarded_tokens == sum(end.length for end in ends)


def test_an_abort_leaves_the_choices_that_were_made(ranker):
    front, core = ranker
    gate = fronts.Gate()
    core.pause = gate
    gate.open.clear()

    async def aborted():
        task = asyncio.ensure_future(collect(front.generate(best(2, 4, rid="r"))))
        await asyncio.sleep(0)
        assert front.abort("r")
        return await task

    answers = run(aborted())
    gate.open.set()
    assert [answer.finish.type for answer in answers] == ["abort"] * 2
    run(front.stats())
    assert len(of_kind(core.log, Abort)) == 4


def test_every_choice_counts_against_the_queue():
    with (
        running_front(Searcher, max_running_requests=2, max_queued_requests=2) as front,
        pytest.raises(Exception, match="requests run or wait"),
    ):
        answers_of(front, best(1, 5))
