"""`boughs.OpenAI`: a model of OpenAI's, of Azure's, or of a server that speaks its protocol."""

from __future__ import annotations

import re
from typing import Any

from boughs.lang.apis.faults import package
from boughs.lang.apis.model import ApiModel
from boughs.lang.apis.openai_chat import OpenAIChat
from boughs.lang.apis.openai_text import OpenAIText
from boughs.lang.errors import InvalidRequest, Unauthorized, Unsupported

_TEXT_MODELS = re.compile(r"gpt-3\.5-turbo-instruct|davinci-002|babbage-002")
"""The models that OpenAI itself has only behind completions."""


class OpenAI(ApiModel):
    """A model behind OpenAI's API; needs `pip install 'boughs[openai]'`.

    Args:
        model_name: The API's name of it.
        is_chat_model: Whether to use chat completions, and not completions; by default all models
            but OpenAI's own old ones.
        chat_template: Refused: the API has its own.
        is_azure: Whether it is Azure's.
        tries: How often an answer is asked for at most until it matches a regex, or is a choice.
        client: Arguments of `openai.AsyncOpenAI` (or `AsyncAzureOpenAI`): `api_key`, `base_url`,
            `timeout`, `max_retries`, …

    Raises:
        Unsupported: The package is not installed.
        Unauthorized: There is no key.
    """

    def __init__(
        self,
        model_name: str,
        is_chat_model: bool | None = None,
        chat_template: object = None,
        is_azure: bool = False,
        *,
        tries: int = 5,
        **client: Any,
    ) -> None:
        check_name(model_name)
        refuse_template(chat_template)
        openai = package("openai", "OpenAI")
        make = openai.AsyncAzureOpenAI if is_azure else openai.AsyncOpenAI
        try:
            made = make(**client)
        except openai.OpenAIError as error:
            raise Unauthorized(f"OpenAI: {error}") from None
        if is_chat_model is None:
            is_chat_model = _TEXT_MODELS.match(model_name) is None
        super().__init__((OpenAIChat if is_chat_model else OpenAIText)(made, model_name), tries)


def check_name(name: object) -> None:
    """Raise `InvalidRequest` if `name` is no model's name."""
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"model_name: expected a name, got {name!r:.60}", "model_name")


def refuse_template(template: object) -> None:
    """Raise `Unsupported` if there is a chat template."""
    if template is not None:
        raise Unsupported(
            "chat_template: an API renders messages with its model's own template",
            "chat_template",
        )
