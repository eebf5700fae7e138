"""Images: what can be shown, to whom, and how each API is told."""

import base64
import importlib.util
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

import boughs
from boughs.lang.apis.litellm_model import LiteLLMChat
from boughs.lang.apis.model import ApiModel
from boughs.lang.endpoint import RuntimeEndpoint
from boughs.lang.errors import InvalidRequest, Unsupported
from boughs.lang.ir import Image
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

PIXELS = np.arange(3 * 2 * 4, dtype=np.uint8).reshape(3, 2, 4)
PNG = boughs.image(PIXELS).data
URL = "data:image/png;base64," + base64.b64encode(PNG).decode()
FILES = {
    "image/png": PNG,
    "image/jpeg": b"\xff\xd8\xff\xe0rest",
    "image/gif": b"GIF89arest",
    "image/webp": b"RIFF0000WEBPrest",
}


@boughs.function
def look(s, picture=PNG):
    s += boughs.user("What is " + boughs.image(picture) + " this" + "?")
    s += boughs.assistant(boughs.gen("x"))


@pytest.mark.parametrize(("kind", "raw"), FILES.items())
def test_files_are_known_by_how_they_begin(tmp_path, kind, raw):
    path = tmp_path / "picture"
    path.write_bytes(raw)
    for given in (raw, bytearray(raw), path, str(path)):
        assert boughs.image(given) == Image(kind, raw)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_tensor_is_drawn(channels):
    torch = pytest.importorskip("torch")
    pixels = np.random.default_rng(1).integers(0, 256, (channels, 5, 7), dtype=np.uint8)
    node = boughs.image(torch.from_numpy(pixels))
    assert node == boughs.image(pixels)
    width, height, depth, colour = struct.unpack(">IIBB", node.data[16:26])
    assert (width, height, depth, colour) == (7, 5, 8, {1: 0, 3: 2, 4: 6}[channels])
    at = node.data.index(b"IDAT")
    (size,) = struct.unpack(">I", node.data[at - 4 : at])
    rows = np.frombuffer(zlib.decompress(node.data[at + 4 : at + 4 + size]), np.uint8)
    rows = rows.reshape(5, 1 + 7 * channels)
    assert not rows[:, 0].any()
    assert (rows[:, 1:].reshape(5, 7, channels).transpose(2, 0, 1) == pixels).all()


def test_a_pil_image_is_saved():
    class Picture:
        def save(self, file, **options):
            assert options == {"format": "PNG"}
            file.write(PNG)

    Picture.__module__ = "PIL.Image"
    assert boughs.image(Picture()) == Image("image/png", PNG)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (b"no picture", "PNG, JPEG"),
        ("/nowhere/picture.png", "No such file"),
        ("https://example.org/a.png", "No such file"),
        (3, "int 3"),
        (np.zeros((3, 2, 4)), "float64"),
        (np.zeros((2, 4, 3), np.uint8), r"\[2, 4, 3\]"),
        (np.zeros((3, 0, 4), np.uint8), r"\[3, 0, 4\]"),
    ],
)
def test_what_is_no_image_is_refused_where_it_is_written(given, said):
    with pytest.raises(InvalidRequest, match=said):
        boughs.image(given)


def test_a_film_is_refused():
    with pytest.raises(Unsupported, match=r"8 frames of 'a\.mp4'"):
        boughs.video("a.mp4", 8)


# ---- to whom ----


def test_a_state_holds_images_in_place():
    backend = MockBackend()
    state = look.run(backend=backend)
    assert "What is <image> this?" in backend.calls[-1].text
    assert "What is  this?" in state.text()
    assert state.messages()[0] == {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is "},
            {"type": "image_url", "image_url": {"url": URL}},
            {"type": "text", "text": " this?"},
        ],
    }
    assert state.messages()[1]["content"] == "ok"


def test_branches_and_joins_keep_images():
    @boughs.function
    def program(s):
        s += boughs.user("a")
        branches = s.fork(2)
        for branch in branches:
            branch += boughs.user("b" + boughs.image(PNG))
        branches.join("concate_and_append")
        s += boughs.user("c")
        s += boughs.assistant(boughs.gen("x"))

    contents = [m["content"] for m in program.run(backend=MockBackend()).messages()]
    shown = [{"type": "text", "text": "b"}, {"type": "image_url", "image_url": {"url": URL}}]
    assert contents == ["a", shown, shown, "c", "ok"]


def test_a_trace_has_images():
    assert f"image/png of {len(PNG)} bytes" in str(look.trace())


@pytest.mark.parametrize("turn", ["system", "assistant", None])
def test_only_a_user_shows_images(turn):
    @boughs.function
    def program(s):
        s += boughs.image(PNG) if turn is None else boughs.role(turn, boughs.image(PNG))

    with pytest.raises(InvalidRequest, match="put it into user"):
        program.run(backend=MockBackend())


def test_a_model_without_eyes_is_named(tiny_model):
    with boughs.Engine(model_path=tiny_model, in_process=True, kv_memory="16M") as engine:
        with pytest.raises(Unsupported, match=r"program look, image/png of .*Front has no eyes"):
            look.run(backend=engine)
        with pytest.raises(Unsupported, match="no images"):
            engine.score([boughs.lang.segments.Image("image/png", "")], ["a"])
    assert not hasattr(RuntimeEndpoint, "sees")


# ---- APIs ----


def test_openai_chat_is_sent_the_file():
    with doubles.Double("a cat") as server:
        backend = boughs.OpenAI("gpt-4o-mini", base_url=server.url + "/v1", api_key="k")
        assert look.run(backend=backend)["x"] == "a cat"
        assert server.seen[0].messages == look.run(backend=backend).messages()[:1]
        old = boughs.OpenAI(
            "davinci-002", base_url=server.url + "/v1", api_key="k", is_chat_model=False
        )
        with pytest.raises(Unsupported, match="has no eyes"):
            look.run(backend=old)
        for made in (backend, old):
            made.close()


def test_anthropic_is_sent_the_file():
    with doubles.Double("a cat") as server:
        backend = boughs.Anthropic("claude", base_url=server.url, api_key="k")
        assert look.run(backend=backend)["x"] == "a cat"
        data = base64.b64encode(PNG).decode()
        assert server.seen[0].messages[0]["content"] == [
            {"type": "text", "text": "What is "},
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": data},
            },
            {"type": "text", "text": " this?"},
        ]
        backend.close()


def test_litellm_and_speculation_are_sent_the_file():
    asked = []

    class Stream:
        def __aiter__(self):
            return self

        async def __anext__(self):
            raise StopAsyncIteration

        async def aclose(self):
            pass

    class Package:
        @staticmethod
        async def acompletion(**request):
            asked.append(request["messages"])
            return Stream()

        @staticmethod
        def get_model_info(model):
            return {}

    @boughs.function(num_api_spec_tokens=8)
    def ahead(s):
        s += boughs.user(boughs.image(PNG)) + boughs.assistant(boughs.gen("x", stop="."))

    with pytest.raises(boughs.BackendError, match="without a finish reason"):
        ahead.run(backend=ApiModel(LiteLLMChat(Package, "some/model", {})))
    assert asked[0][0]["content"] == [{"type": "image_url", "image_url": {"url": URL}}]
