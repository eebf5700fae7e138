"""A front whose core does not come up: what it reports is raised, and nothing is left."""

import importlib.util
from pathlib import Path

import pytest

from boughs.lang import loop
from boughs.lang.errors import (
    EngineDied,
    InvalidRequest,
    Unservable,
)
from boughs.runtime.config import EngineConfig
from boughs.runtime.front import supervisor
from boughs.runtime.front.front import Front
from boughs.runtime.front.link import ThreadLink


def load(name):
    path = Path(__file__).parents[1] / "fixtures" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fake = load("fake_core")
fronts = load("fronts")
running_front, run, answers_of = fronts.running_front, fronts.run, fronts.answers_of

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.mark.parametrize(
    ("fault", "kind"),
    [(("InvalidRequest", "model_path: bad"), InvalidRequest), (("Unservable", "no"), Unservable)],
)
def test_what_a_core_reports_at_its_start_is_raised(fault, kind):
    with pytest.raises(kind, match=fault[1]), running_front(lambda: fake.FakeCore(fail=fault)):
        pass


def test_a_core_that_dies_at_its_start_says_how():
    class Broken(fake.FakeCore):
        def run(self, receive, send):
            raise MemoryError("no room")

    with pytest.raises(EngineDied, match="MemoryError: no room"), running_front(Broken):
        pass


def test_a_model_without_a_tokenizer_ends_the_core_that_was_started(tmp_path):
    core = fake.FakeCore()
    front = Front(EngineConfig(model_path=str(tmp_path)), lambda _: ThreadLink(core.run))
    with pytest.raises(Exception, match="tokenizer cannot be loaded"):
        loop.run(front.start())
    assert not core.log or isinstance(core.log[-1], fake.Shutdown)


def test_a_start_that_takes_for_ever_is_given_up(monkeypatch):
    class Silent(fake.FakeCore):
        def run(self, receive, send):
            receive(None)

    monkeypatch.setattr(supervisor, "START_SECONDS", 0.05)
    with pytest.raises(EngineDied, match="not ready"), running_front(Silent):
        pass
