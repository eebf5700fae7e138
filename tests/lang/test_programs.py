"""Programs on a mock backend: statements, reads, arguments, composition."""

import asyncio
import functools
import inspect
import threading

import pytest

import boughs
from boughs.lang.errors import InvalidRequest, NotFound, Unsupported
from boughs.lang.results import collect
from boughs.lang.segments import Content, Ids, Role, Text
from boughs.testing import MockBackend


@boughs.function
def guide(s, place):
    """A guide."""
    s += boughs.system("Be brief.")
    s += boughs.user("What is " + place + " famous for?")
    s += boughs.assistant("It is " + boughs.gen("famous") + ".")
    s += boughs.user("And to eat?")
    s += boughs.assistant(boughs.gen("food"))
    return len(s["famous"])


CHAT = (
    "<|im_start|>system\nBe brief.<|im_end|>\n"
    "<|im_start|>user\nWhat is Rome famous for?<|im_end|>\n"
    "<|im_start|>assistant\nIt is the Forum.<|im_end|>\n"
    "<|im_start|>user\nAnd to eat?<|im_end|>\n"
    "<|im_start|>assistant\nPasta<|im_end|>\n"
)


def test_a_chat_of_two_turns():
    backend = MockBackend(["the Forum", "Pasta"])
    state = guide.run(place="Rome", backend=backend)
    assert (state["famous"], state["food"], state.ret_value) == ("the Forum", "Pasta", 9)
    assert state.text() == CHAT
    assert [m["role"] for m in state.messages()] == [
        *("system", "user", "assistant", "user", "assistant")
    ]
    assert state.messages()[2] == {"role": "assistant", "content": "It is the Forum."}
    assert "famous" in state
    assert "nothing" not in state


def test_the_backend_gets_segments_and_each_token_as_it_was_made():
    backend = MockBackend(["the Forum", "Pasta"])
    guide.run(place="Rome", backend=backend)
    asked = backend.calls[1].request.prompt
    assert asked[:3] == [Role("system", "begin"), Content("Be brief."), Role("system", "end")]
    assert asked[4] == Content("What is Rome famous for?")
    assert asked[7] == Text("It is ")
    assert asked[8] == Ids(list(map(ord, "the Forum")))
    assert asked[9] == Text(".")


def test_content_is_content_everywhere_and_text_only_by_its_author():
    @boughs.function
    def program(s, question):
        s += "<|im_start|>" + boughs.content(question) + boughs.gen("x")

    backend = MockBackend()
    program.run("<|im_end|>", backend=backend)
    assert backend.calls[0].request.prompt == [Text("<|im_start|>"), Content("<|im_end|>")]


def test_roles_as_contexts_and_as_marks():
    @boughs.function
    def contexts(s):
        with s.system():
            s += "a"
        with s.user():
            s += "b"
            s += "c"
        with s.assistant():
            s += "d"
            s += boughs.gen("x")
        with s.role("tool"):
            s += "e"

    @boughs.function
    def marks(s):
        s.system("a")
        s += boughs.user_begin() + "bc" + boughs.user_end()
        s += boughs.assistant_begin() + "d"
        s += boughs.gen("x") + boughs.assistant_end()
        s.role("tool", "e")

    first = contexts.run(backend=MockBackend())
    second = marks.run(backend=MockBackend())
    assert first.text() == second.text()
    assert first.messages() == second.messages()


def test_a_role_context_ends_its_role_when_its_body_fails():
    def fail(s):
        with s.user():
            s += "a"
            raise KeyError("k")

    @boughs.function
    def program(s):
        with pytest.raises(KeyError):
            fail(s)
        s += boughs.assistant(boughs.gen("x"))

    state = program.run(backend=MockBackend())
    assert [m["role"] for m in state.messages()] == ["user", "assistant"]


@pytest.mark.parametrize("addition", [5, None, ["a"], b"a", 1.5, {}])
def test_what_cannot_be_added_is_an_error_of_its_line(addition):
    @boughs.function
    def program(s):
        s += addition
        raise AssertionError("the line after must not run")

    with pytest.raises(InvalidRequest, match="expected text or an expression"):
        program.run(backend=MockBackend())


def test_variables_are_set_in_the_order_of_the_statements():
    @boughs.function
    def program(s):
        s["x"] = "first"
        assert s["x"] == "first"
        s += boughs.gen("x")
        assert s["x"] == "made"
        s += boughs.gen("x")
        s["x"] = 7
        assert s["x"] == 7
        assert s.get_var("x") == 7
        s.set_var("x", None)

    state = program.run(backend=MockBackend("made"))
    assert state["x"] is None


def test_in_does_not_race():
    @boughs.function
    def program(s):
        s += boughs.gen("x")
        return "x" in s, "y" in s

    for _ in range(20):
        assert program.run(backend=MockBackend(delay=0.001)).ret_value == (True, False)


def test_an_unknown_variable_names_those_that_there_are():
    state = guide.run(place="Rome", backend=MockBackend())
    with pytest.raises(NotFound, match=r"program guide: there is no variable 'fame'.*'famous'"):
        state["fame"]
    with pytest.raises(LookupError):
        state["fame"]
    with pytest.raises(InvalidRequest, match="name is a string"):
        state[None]


def test_unnamed_gens_share_no_variable():
    @boughs.function
    def program(s):
        s += boughs.gen() + boughs.gen() + boughs.select(choices=["a"])

    state = program.run(backend=MockBackend(["1", "2", "a"]))
    assert state.text() == "12a"
    assert state._executor.contents.variables == {}


def test_several_choices_make_a_list_and_go_on_with_the_first():
    @boughs.function
    def program(s):
        s += boughs.gen("x", n=3) + "!"
        s += boughs.gen("y")

    backend = MockBackend([["a", "b", "c"], "d"])
    state = program.run(backend=backend)
    assert state["x"] == ["a", "b", "c"]
    assert state.text() == "a!d"
    assert [info["completion_tokens"] for info in state.get_meta_info("x")] == [1, 1, 1]


def test_var_scope_is_the_text_inside():
    @boughs.function
    def program(s):
        s += "a"
        with s.var_scope("turn"):
            s += boughs.user("q")
            s += boughs.assistant(boughs.gen("x"))
        s += "z"
        return s["turn"]

    text = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nok<|im_end|>\n"
    assert program.run(backend=MockBackend()).ret_value == text


def test_meta_info_and_usage():
    @boughs.function
    def program(s):
        s += "abcd" + boughs.gen("x", return_logprob=True, top_logprobs_num=1, logprob_start_len=2)
        s["mine"] = 5

    state = program.run(backend=MockBackend("ok"), return_text_in_logprobs=True)
    info = state.get_meta_info("x")
    assert info["finish_reason"] == {"type": "stop", "matched": None}
    assert (info["prompt_tokens"], info["completion_tokens"], info["cached_tokens"]) == (4, 2, 0)
    assert info["output_token_logprobs"] == [(-1.0, 111, "o"), (-1.0, 107, "k")]
    assert [entry[2] for entry in info["input_token_logprobs"]] == ["c", "d"]
    assert info["output_top_logprobs"][0] == [(-1.0, 111, "o")]
    assert info["e2e_latency"] >= 0
    assert state.get_meta_info("mine") == {}
    with pytest.raises(NotFound):
        state.get_meta_info("other")
    usage = state.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.requests) == (4, 2, 1)


# ---- parameters of the run ----


def params_of(backend):
    return [c.request.params for c in backend.calls if not c.prefills]


def test_a_gens_own_parameters_go_before_those_of_the_run():
    @boughs.function
    def program(s):
        s += boughs.gen("a", temperature=0.5, max_tokens=3) + boughs.gen("b", stop=None)

    backend = MockBackend()
    program.run(backend=backend, temperature=0, max_tokens=9, stop="x", seed=3)
    first, second = params_of(backend)
    assert (first.temperature, first.max_new_tokens, first.stop) == (0.5, 3, ("x",))
    assert (second.temperature, second.max_new_tokens, second.stop) == (0.0, 9, ("x",))
    assert first.seed == second.seed == 3


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"max_tokens": 3, "max_new_tokens": 4}, "max_new_tokens"),
        ({"stream": 1}, "stream"),
        ({"use_thread": "no"}, "use_thread"),
        ({"backend": "http://x"}, "backend"),
        ({"beam_width": 0}, "beam_width"),
        ({"beam_width": 3, "top_p": 0.5}, "top_p"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"stream_interval": 2}, "stream_interval"),
    ],
)
def test_a_wrong_parameter_of_a_run_is_named(options, named):
    with pytest.raises(InvalidRequest, match=named):
        guide.run("Rome", **{"backend": MockBackend(), **options})


@pytest.mark.parametrize("unknown", ["temprature", "regex", "structural_tag"])
def test_what_neither_program_nor_run_knows_is_a_type_error(unknown):
    with pytest.raises(TypeError, match=unknown):
        guide.run("Rome", backend=MockBackend(), **{unknown: "x"})


def test_a_minimum_above_the_maximum_of_the_run_is_an_error_with_its_place():
    @boughs.function
    def program(s):
        s += boughs.gen("x", min_tokens=200)

    with pytest.raises(InvalidRequest, match="program program, variable 'x': min_new_tokens"):
        program.run(backend=MockBackend())
    program.run(backend=MockBackend(), max_tokens=300)


def test_logprob_parameters_without_logprobs_are_an_error():
    @boughs.function
    def program(s):
        s += boughs.gen("x", top_logprobs_num=3)

    with pytest.raises(InvalidRequest, match="needs return_logprob"):
        program.run(backend=MockBackend())
    program.run(backend=MockBackend(), return_logprob=True)


def test_there_must_be_a_backend(monkeypatch):
    monkeypatch.setattr(boughs.global_config, "default_backend", None)
    with pytest.raises(InvalidRequest, match="no backend"):
        guide.run("Rome")
    with pytest.raises(InvalidRequest, match="no backend"):
        boughs.flush_cache()
    boughs.set_default_backend(MockBackend("here"))
    assert guide.run("Rome")["food"] == "here"
    assert boughs.flush_cache() is True
    assert boughs.get_server_info()["model_path"] == "mock"
    with pytest.raises(InvalidRequest, match="backend"):
        boughs.set_default_backend("http://127.0.0.1")


def test_a_backend_in_scope(monkeypatch):
    monkeypatch.setattr(boughs.global_config, "default_backend", MockBackend("default"))

    @boughs.function
    def outer(s):
        return guide.run("Rome")["food"]

    with boughs.backend(MockBackend("scoped")):
        assert guide.run("Rome")["food"] == "scoped"
        assert outer.run().ret_value == "scoped"
        assert [s["food"] for s in guide.run_batch([("Rome",)] * 3)] == ["scoped"] * 3
        assert outer.run(backend=MockBackend("given")).ret_value == "given"
    assert guide.run("Rome")["food"] == "default"


def test_a_scope_is_that_of_its_task_alone():
    @boughs.function
    async def food(s):
        s += "?" + boughs.gen("food")
        return await s.get("food")

    async def inside(name, begun, other):
        with boughs.backend(MockBackend(name)):
            begun.set()
            await other.wait()  # both scopes are open now
            return (await food.run_async()).ret_value

    async def main():
        one, two = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(inside("one", one, two), inside("two", two, one))

    assert asyncio.run(main()) == ["one", "two"]


def test_a_host_stands_for_its_backend():
    class Host:
        endpoint = MockBackend("hosted")

        def generate(self):
            raise AssertionError("the host itself is no backend")

        score = flush_cache = get_server_info = generate

    assert guide.run("Rome", backend=Host())["food"] == "hosted"


# ---- what a program may be ----


def test_any_argument_name_may_be_used():
    @boughs.function
    def program(s, n, stop, temperature, backend, stream=5, *, name=2, self_=1):
        s += boughs.gen("x")
        return n, stop, temperature, backend, stream, name

    mock = MockBackend()
    state = program.configure(backend=mock, temperature=0).run(
        n=1, stop=[2], temperature="hot", backend="b", max_tokens=7, name=3
    )
    assert state.ret_value == (1, [2], "hot", "b", 5, 3)
    assert (params_of(mock)[0].temperature, params_of(mock)[0].max_new_tokens) == (0.0, 7)
    (state,) = program.run_batch(
        [{"n": 1, "stop": 2, "temperature": 3, "backend": 4}], backend=mock
    )
    assert state.ret_value == (1, 2, 3, 4, 5, 2)


NAMES = ("self", "state", "s_", "backend", "timeout", "args", "kwargs", "func", "cache", "cls")


@pytest.mark.parametrize("name", NAMES)
def test_no_argument_name_is_taken(name):
    names = {}
    exec(f"def body(s, {name}, *, other=0):\n    s += str({name})\n    return {name}", names)
    program = boughs.function(names["body"])
    given, mock = {name: 7}, MockBackend()

    @boughs.function
    def outer(s):
        s += program(**given)
        return program(s, **given)

    async def awaited():
        return await program.run_async(**given)

    with boughs.backend(mock):
        assert program.run(**given).ret_value == 7
        assert program(**given).ret_value == 7
        assert program.bind(**given).run().ret_value == 7
        assert program.bind(**given).configure(temperature=0).run(other=1).ret_value == 7
        assert program.run_batch([given, (7,)])[1].ret_value == 7
        assert asyncio.run(awaited()).ret_value == 7
        assert program.trace(**given).ret_value == 7
        assert program.trace().ret_value == f"{{{name}}}"
        state = outer.run()
    assert (state.text(), state.ret_value) == ("77", 7)


def test_arguments_of_every_kind():
    @boughs.function
    def program(s, a, /, b, *rest, c=3, **others):
        return a, b, rest, c, others

    run = functools.partial(program.run, backend=MockBackend())
    assert run(1, 2, 4, 5, c=6, d=7).ret_value == (1, 2, (4, 5), 6, {"d": 7})
    assert run(1, b=2).ret_value == (1, 2, (), 3, {})
    for wrong in ((), (1,)):
        with pytest.raises(TypeError, match=r"program\(\): missing"):
            run(*wrong)


def test_bind_gives_arguments_and_those_of_the_call_go_before():
    @boughs.function
    def program(s, a, b=2):
        return a, b

    bound = program.bind(a=1)
    run = functools.partial(bound.run, backend=MockBackend())
    assert run().ret_value == (1, 2)
    assert run(a=5).ret_value == (5, 2)
    assert run(7, b=8).ret_value == (7, 8)
    items = [{}, {"a": 5}, (6,)]
    states = bound.bind(b=3).run_batch(items, backend=MockBackend())
    assert [s.ret_value for s in states] == [(1, 3), (5, 3), (6, 3)]
    assert items == [{}, {"a": 5}, (6,)]
    with pytest.raises(TypeError, match="'c'"):
        program.bind(c=1)


def test_configure_knows_only_parameters_of_a_run():
    with pytest.raises(InvalidRequest, match="place"):
        guide.configure(place="Rome")
    with pytest.raises(InvalidRequest, match="temperature"):
        guide.configure(temperature=-2)
    state = guide.configure(stream=True, backend=MockBackend()).run("Rome")
    assert list(state.text_iter("food")) == ["ok"]


class Agent:
    name = "Ada"

    @boughs.function
    def greet(self, s, whom):
        """Greets."""
        s += self.name + " greets " + whom + boughs.gen("x")
        return self.name


def test_methods_and_closures_are_programs():
    agent = Agent()
    agent.name = "Bob"
    state = agent.greet.run(whom="Eve", backend=MockBackend())
    assert state.text() == "Bob greets Eveok"
    states = agent.greet.run_batch([{"whom": "A"}, ("B",)], backend=MockBackend())
    assert [s.ret_value for s in states] == ["Bob", "Bob"]

    def make(word):
        @boughs.function()
        def program(s):
            return word

        return program

    assert make("w").run(backend=MockBackend()).ret_value == "w"


def test_a_program_looks_like_its_function():
    assert (guide.__name__, guide.__doc__) == ("guide", "A guide.")
    assert guide.__module__ == __name__
    assert list(inspect.signature(guide).parameters) == ["s", "place"]
    assert Agent().greet.__doc__ == "Greets."
    assert repr(guide) == "<Program guide>"


def test_what_is_no_program_is_refused():
    with pytest.raises(InvalidRequest, match="first parameter is its state"):
        boughs.function(lambda: None)
    with pytest.raises(InvalidRequest, match="cannot yield"):

        @boughs.function
        def program(s):
            yield 1

    with pytest.raises(InvalidRequest, match="expected a function"):
        boughs.function("x")


# ---- composition ----


@boughs.function
def ask(s, question):
    s += boughs.user(question) + boughs.assistant(boughs.gen("answer"))
    return s["answer"]


def test_a_program_in_a_program_runs_on_its_state():
    @boughs.function
    def outer(s):
        s += boughs.system("x")
        s += ask(question="a")
        first = s["answer"]
        second = ask(s, "b")
        s += "(" + ask("c") + ")"
        return first, second, s["answer"]

    backend = MockBackend(["1", "2", "3"])
    state = outer.run(backend=backend)
    assert state.ret_value == ("1", "2", "3")
    contents = [m["content"] for m in state.messages()]
    assert contents == ["x", "a", "1", "b", "2", "c", "3"]
    assert len(params_of(backend)) == 3


def test_a_call_outside_of_programs_is_a_run():
    assert ask(question="a", backend=MockBackend())["answer"] == "ok"


def test_a_call_inside_of_a_program_that_is_read_like_a_run_says_what_to_write():
    @boughs.function
    def outer(s):
        return ask(question="a")["answer"]

    with pytest.raises(InvalidRequest, match=r"call \.run"):
        outer.run(backend=MockBackend())
    with pytest.raises(TypeError, match="question"):
        boughs.function(lambda s: ask(query="a")).run(backend=MockBackend())


def test_a_configured_program_cannot_be_a_part():
    @boughs.function
    def outer(s):
        s += ask.configure(temperature=0)(question="a")

    with pytest.raises(InvalidRequest, match="configured"):
        outer.run(backend=MockBackend())


def test_a_program_run_in_a_program_is_its_own():
    @boughs.function
    def outer(s):
        s += "outer"
        inner = ask.run(question="a")
        return inner["answer"], s.text()

    assert outer.run(backend=MockBackend()).ret_value == ("ok", "outer")


# ---- fork ----


def test_branches_have_what_the_state_had_and_share_nothing_after():
    @boughs.function
    def program(s):
        s += "a" + boughs.gen("x")
        s["y"] = [1]
        branches = s.fork(2)
        s += "parent"
        for i, branch in enumerate(branches):
            assert branch["x"] == "ok"
            assert branch.get_meta_info("x")["completion_tokens"] == 2
            branch += f"b{i}"
            branch["z"] = i
        assert len(branches) == 2
        return [b.text() for b in branches], s.text(), "z" in s

    state = program.run(backend=MockBackend())
    assert state.ret_value == (["aokb0", "aokb1"], "aokparent", False)


def test_join_gathers_what_the_branches_set_aligned():
    @boughs.function
    def program(s):
        s["old"] = "old"
        branches = s.fork(3)
        branches += lambda i: "x" * i + boughs.gen("new")
        branches[1]["old"] = "changed"
        branches[2]["rare"] = 5
        branches.join()
        return s["new"], s["old"], s["rare"], s.get_meta_info("new")

    new, old, rare, metas = program.run(backend=MockBackend(lambda c: str(len(c.text)))).ret_value
    assert new == ["0", "1", "2"]
    assert old == ["old", "changed", "old"]
    assert rare == [None, None, 5]
    assert [meta["prompt_tokens"] for meta in metas] == [0, 1, 2]


def test_join_can_append_the_texts():
    @boughs.function
    def program(s):
        s += boughs.user("q") + boughs.assistant_begin()
        branches = s.fork(3)
        branches += lambda i: f"{i}." + boughs.gen("x") + "\n"
        branches.join("concate_and_append")
        s += "end" + boughs.gen("y") + boughs.assistant_end()

    backend = MockBackend(lambda c: c.text[-2])
    state = program.run(backend=backend)
    assert state.messages()[1]["content"] == "0.0\n1.1\n2.2\nendn"
    assert state["x"] == ["0", "1", "2"]
    assert "0.0\n1.1\n2.2\nend" in backend.calls[-1].text
    assert any(isinstance(seg, Ids) for seg in backend.calls[-1].request.prompt)


def test_the_shared_prefix_is_sent_once_before_the_branches_always():
    @boughs.function
    def program(s, early):
        s += "shared"
        if early:
            s.sync()
        branches = s.fork(4)
        branches += boughs.gen("x")
        branches.join()

    for early in (False, True) * 25:
        backend = MockBackend()
        program.run(early, backend=backend)
        assert [call.prefills for call in backend.calls] == [True] + [False] * 4
        assert backend.calls[0].text == "shared"


def test_the_shared_prefix_is_computed_as_the_run_asks():
    @boughs.function
    def program(s):
        s += "shared"
        s.fork(2).join()

    backend = MockBackend()
    program.run(backend=backend, cache_salt="s", priority=3, timeout=9, temperature=0.5)
    params = backend.calls[0].request.params
    assert (params.cache_salt, params.priority, params.timeout) == ("s", 3, 9)


@pytest.mark.timeout(20)
def test_what_a_branch_was_given_is_read_without_waiting_for_what_it_makes():
    gate = threading.Event()

    class Gated(MockBackend):
        async def generate(self, request):
            if len(self.calls) == 1:
                await asyncio.to_thread(gate.wait)
            async for chunk in super().generate(request):
                yield chunk

    @boughs.function
    def program(s):
        s += boughs.gen("x")
        branch = s.fork(1)[0]
        branch += boughs.gen("slow")
        value = branch["x"]
        gate.set()
        return value, branch["slow"]

    assert program.run(backend=Gated(["a", "b"])).ret_value == ("a", "b")


@pytest.mark.parametrize(("text", "size"), [("shared", 1), ("", 3)])
def test_no_prefix_is_sent_where_nothing_is_shared(text, size):
    @boughs.function
    def program(s):
        s += text
        branches = s.fork(size)
        branches += boughs.gen("x")
        branches.join()

    backend = MockBackend()
    program.run(backend=backend)
    assert not any(call.prefills for call in backend.calls)


def test_forks_nest():
    @boughs.function
    def program(s):
        outer = s.fork(2)
        for i, branch in enumerate(outer):
            inner = branch.fork(2)
            inner += lambda j, i=i: f"{i}{j}" + boughs.gen("x")
            inner.join()
        outer.join()

    state = program.run(backend=MockBackend(lambda c: c.text))
    assert state["x"] == [["00", "01"], ["10", "11"]]


def test_a_group_takes_a_list_a_text_an_expression_or_a_function():
    @boughs.function
    def program(s):
        group = s.fork(2)
        group += "a"
        group += ["b", boughs.gen("x")]
        group += boughs.gen("y")
        group += lambda i: f"{i}"
        group[0] += "!"
        with pytest.raises(InvalidRequest, match="3 additions for 2 branches"):
            group += ["a", "b", "c"]
        with pytest.raises(InvalidRequest, match="group"):
            group += 5
        with pytest.raises(InvalidRequest, match="replaced"):
            group[0] = group[1]
        with pytest.raises(InvalidRequest, match="mode"):
            group.join("gather")
        return [b.text() for b in group]

    assert program.run(backend=MockBackend()).ret_value == ["abok0!", "aokok1"]


def test_copy_leaves_no_trace():
    @boughs.function
    def program(s):
        s += "a"
        with s.copy() as c:
            c += boughs.gen("x")
            value = c["x"]
        return value, "x" in s, s.text()

    assert program.run(backend=MockBackend()).ret_value == ("ok", False, "a")


@pytest.mark.parametrize("size", [0, -1, "2", 1.5, True])
def test_a_fork_has_at_least_one_branch(size):
    with pytest.raises(InvalidRequest, match="size"):
        boughs.function(lambda s: s.fork(size)).run(backend=MockBackend())


def test_position_ids_offset_is_refused():
    with pytest.raises(Unsupported, match="position_ids_offset"):
        boughs.function(lambda s: s.fork(2, position_ids_offset=[0, 1])).run(backend=MockBackend())


def test_a_joined_branch_takes_nothing_more():
    @boughs.function
    def program(s):
        branches = s.fork(2)
        branches.join()
        branches[0] += "more"

    with pytest.raises(InvalidRequest, match="branch 0: has ended"):
        program.run(backend=MockBackend())


def test_the_mock_gives_what_the_contract_says():
    async def ask_for(prompt):
        return await collect(MockBackend("abcdefghij").generate(prompt))

    from boughs.lang.requests import GenerateRequest

    (answer,) = asyncio.run(ask_for(GenerateRequest(prompt="x")))
    assert answer.text == "abcdefghij"
    assert answer.segments == [Ids(list(map(ord, "abcdefghij")))]
    assert answer.finish is not None
