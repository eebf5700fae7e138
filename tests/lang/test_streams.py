"""Streams: many readers, late readers, per variable and whole, sync and async."""

import asyncio
import threading

import pytest

import boughs
from boughs.lang.errors import InvalidRequest, NotFound
from boughs.testing import MockBackend

pytestmark = pytest.mark.timeout(30)


@boughs.function
def story(s, hero="Ada"):
    s += boughs.user(f"Tell of {hero}.")
    with s.assistant():
        s += "So: " + boughs.gen("story")
    s += boughs.user("A title?") + boughs.assistant(boughs.gen("title"))
    s["length"] = 5
    s["word"] = "word"
    s += boughs.select("end", choices=["good", "bad"])


def backend(**options):
    return MockBackend(
        lambda c: (
            "good" if c.choices else "once upon a time" if "So:" in c.text[-9:] else "The Title"
        ),
        **options,
    )


async def async_pieces(state, *args, **kwargs):
    return [piece async for piece in state.text_async_iter(*args, **kwargs)]


def test_pieces_come_while_the_program_runs():
    released = threading.Event()

    @boughs.function
    def program(s):
        s += boughs.gen("x")
        assert released.wait(20)
        s += boughs.gen("y")

    state = program.run(backend=MockBackend("abcdefgh"), stream=True)
    first = next(state.text_iter("x"))
    whole = state.text_iter()
    assert next(whole) == first == "abcd"
    assert repr(state) == "<ProgramState of program program: 1 statements>"
    released.set()
    assert "".join([first, *whole]) == "abcdefgh" * 2


@pytest.mark.parametrize("name", ["story", "title", None, "word", "end"])
def test_readers_of_every_kind_see_the_whole_text(name):
    state = story.run(backend=backend(delay=0.001), stream=True)
    read = {}

    def sync_reader(key):
        read[key] = "".join(state.text_iter(name))

    def async_reader(key):
        read[key] = "".join(asyncio.run(async_pieces(state, name)))

    threads = [
        threading.Thread(target=kind, args=(f"{kind.__name__}{i}",))
        for i in range(2)
        for kind in (sync_reader, async_reader)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    sync_reader("late")
    async_reader("late too")
    expected = state.text() if name is None else state[name]
    assert read == dict.fromkeys(read, expected)
    assert len(read) == 6


def test_streamed_is_unstreamed():
    streamed = story.run(backend=backend(), stream=True)
    whole = story.run(backend=backend())
    assert "".join(streamed.text_iter()) == whole.text() == streamed.text()
    assert streamed.messages() == whole.messages()
    for name in ("story", "title", "end"):
        assert "".join(whole.text_iter(name)) == streamed[name] == whole[name]
    assert "".join(whole.text_iter()) == whole.text()


def test_a_name_that_never_comes_is_an_error_when_the_program_ends():
    state = story.run(backend=backend(), stream=True)
    with pytest.raises(NotFound, match="'nothing'"):
        list(state.text_iter("nothing"))
    with pytest.raises(NotFound, match="'nothing'"):
        asyncio.run(async_pieces(state, "nothing"))
    with pytest.raises(NotFound):
        state["nothing"]


def test_reads_of_a_running_program_wait_for_what_it_has_yet_to_add():
    go = threading.Event()

    @boughs.function
    def program(s):
        assert go.wait(20)
        s += "a" + boughs.gen("x")
        branches = s.fork(2)
        branches += boughs.gen("y")
        branches.join()
        return 7

    threading.Timer(0.05, go.set).start()
    state = program.run(backend=MockBackend(), stream=True)
    assert state["x"] == "ok"
    assert state["y"] == ["ok", "ok"]
    assert "y" in state
    assert state.ret_value == 7
    assert state.text() == "aok"
    assert state.error() is None


def test_meta_data_comes_with_the_pieces():
    state = story.run(backend=backend(), stream=True, return_logprob=True)
    pairs = asyncio.run(async_pieces(state, "story", return_meta_data=True))
    assert "".join(piece for piece, _ in pairs) == state["story"]
    counts = [meta["completion_tokens"] for _, meta in pairs]
    assert counts == sorted(counts)
    last = pairs[-1][1]
    assert last["finish_reason"]["type"] == "stop"
    assert len(last["output_token_logprobs"]) == last["completion_tokens"] == 16
    assert [meta["finish_reason"] for _, meta in pairs[:-1]] == [None] * (len(pairs) - 1)
    (pair,) = asyncio.run(async_pieces(state, "end", return_meta_data=True))
    assert pair == ("good", state.get_meta_info("end"))
    with pytest.raises(InvalidRequest, match="return_meta_data"):
        asyncio.run(async_pieces(state, None, return_meta_data=True))


def test_what_is_no_text_is_not_streamed():
    state = story.run(backend=backend())
    with pytest.raises(InvalidRequest, match="length"):
        list(state.text_iter("length"))


def test_a_body_may_read_its_own_streams():
    @boughs.function
    def program(s):
        s += "a" + boughs.gen("x")
        assert "".join(s.text_iter("x")) == "ok"
        assert "".join(s.text_iter()) == "aok"
        with pytest.raises(NotFound):
            list(s.text_iter("y"))
        s += "b"
        return "".join(s.text_iter())

    assert program.run(backend=MockBackend()).ret_value == "aokb"


def test_a_branchs_text_is_read_from_outside_after_the_join():
    @boughs.function
    def program(s):
        s += "a"
        branches = s.fork(2)
        branches += lambda i: f"{i}" + boughs.gen("x")
        texts = [list(b.text_iter()) for b in branches]
        branches.join()
        return texts, ["".join(b.text_iter()) for b in branches], branches[1].text()

    before, after, text = program.run(backend=MockBackend()).ret_value
    assert before == [["a0ok"], ["a1ok"]]
    assert after == ["a0ok", "a1ok"]
    assert text == "a1ok"


def test_text_before_a_role_is_rendered_waits_and_is_not_lost():
    @boughs.function
    def program(s):
        s += boughs.system("x")
        s += boughs.user("y")

    state = program.run(backend=MockBackend(), stream=True)
    pieces = list(state.text_iter())
    assert "".join(pieces) == state.text()
    assert "<|im_start|>user\ny<|im_end|>\n" in "".join(pieces)


def test_several_choices_stream_the_first():
    @boughs.function
    def program(s):
        s += boughs.gen("x", n=2)

    state = program.run(backend=MockBackend([["abcdef", "ghijkl"]]), stream=True)
    assert "".join(state.text_iter("x")) == "abcdef"
    assert state["x"] == ["abcdef", "ghijkl"]
    assert "".join(state.text_iter()) == "abcdef"


def test_the_text_of_a_program_that_failed_before_it_wrote():
    @boughs.function
    def program(s):
        raise ValueError("boom")

    state = program.run(backend=MockBackend(), stream=True)
    with pytest.raises(ValueError, match="boom"):
        list(state.text_iter())


READS = {
    "get_var": lambda state: state.get_var("late", timeout=20),
    "item": lambda state: state["late"],
    "meta": lambda state: state.get_meta_info("late") and "text",
    "text_iter": lambda state: "".join(state.text_iter("late")),
    "get": lambda state: asyncio.run(state.get("late")),
    "text_async_iter": lambda state: "".join(asyncio.run(async_pieces(state, "late"))),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_read_before_a_join_waits_for_what_comes_behind_it(read):
    """A join that is still to run may set any variable; if it does not, others may."""
    reads = threading.Event()

    class Slow(MockBackend):
        async def generate(self, request):
            await asyncio.to_thread(reads.wait, 20)
            async for chunk in super().generate(request):
                yield chunk

    @boughs.function
    def program(s):
        branches = s.fork(2)
        for branch in branches:
            branch += boughs.gen("x")
        branches.join()
        s += boughs.gen("late")

    state = program.run(backend=Slow("text"), stream=True)
    threading.Timer(0.1, reads.set).start()  # no branch has run before, so the join waits
    assert read(state) == "text"
    state.sync()
    with pytest.raises(NotFound):
        state.get_var("never")
