"""`boughs.LiteLLM`: any model that LiteLLM reaches, by its names."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from boughs.lang.apis.answers import Call, Piece
from boughs.lang.apis.faults import package
from boughs.lang.apis.model import ApiModel
from boughs.lang.apis.openai_chat import OpenAIChat, chat_pieces, chat_request
from boughs.lang.apis.openai_model import check_name, refuse_template
from boughs.lang.errors import Unsupported


class LiteLLM(ApiModel):
    """A model that LiteLLM reaches; needs `pip install 'boughs[litellm]'`.

    What a provider does not take is refused by LiteLLM, and so by this.

    Args:
        model_name: LiteLLM's name of it (`provider/model`).
        chat_template: Refused: the API has its own.
        api_key: The provider's key; by default of the environment.
        organization: The provider's, if it has any.
        base_url: Where the provider is.
        timeout: Seconds for an answer.
        max_retries: How often the provider is asked again after an error.
        default_headers: Of each request.
        tries: How often an answer is asked for at most until it matches a regex, or is a choice.

    Raises:
        Unsupported: The package is not installed.
    """

    def __init__(  # noqa: PLR0917 - SGLang's signature
        self,
        model_name: str,
        chat_template: object = None,
        api_key: str | None = None,
        organization: str | None = None,
        base_url: str | None = None,
        timeout: float = 600.0,
        max_retries: int = 2,
        default_headers: Mapping[str, str] | None = None,
        *,
        tries: int = 5,
    ) -> None:
        check_name(model_name)
        refuse_template(chat_template)
        options = {
            "api_key": api_key,
            "organization": organization,
            "base_url": base_url,
            "timeout": timeout,
            "max_retries": max_retries,
            "extra_headers": None if default_headers is None else dict(default_headers),
        }
        given = {name: value for name, value in options.items() if value is not None}
        super().__init__(LiteLLMChat(package("litellm", "LiteLLM"), model_name, given), tries)


class LiteLLMChat:
    """LiteLLM's `acompletion`.

    Args:
        litellm: The package.
        model: The model's name.
        options: Arguments of each call.
    """

    def __init__(self, litellm: Any, model: str, options: Mapping[str, Any]) -> None:
        self._litellm = litellm
        self._options = options
        self.model = model
        self.name = f"LiteLLM ({model})"
        self.place = str(options.get("base_url", ""))
        self.features = replace(OpenAIChat.features, continues=_prefills(litellm, model))

    async def stream(self, call: Call) -> AsyncGenerator[Piece, None]:
        """The answer in pieces."""
        request = chat_request(call, self.features)
        if "max_completion_tokens" in request:  # LiteLLM turns this one into the provider's
            request["max_tokens"] = request.pop("max_completion_tokens")
        if call.conversation.said:
            request["messages"][-1]["prefix"] = True
        stream = await self._litellm.acompletion(model=self.model, **request, **self._options)
        try:
            async for chunk in stream:
                for piece in chat_pieces(chunk):
                    yield piece
        finally:
            await stream.aclose()

    async def score(self, prompt: str, choices: list[str]) -> NoReturn:
        """Refuse: there is no way to have logprobs of a given text from all providers."""
        raise Unsupported(f"{self.name} cannot score {len(choices)} choices after {prompt!r:.20}")

    async def close(self) -> None:
        """Do nothing: the connections are the package's."""


def _prefills(litellm: Any, model: str) -> bool:
    """Whether the package says that the model goes on with a turn of the assistant."""
    try:
        info = litellm.get_model_info(model)
    except Exception:  # noqa: BLE001 - it raises bare exceptions for models that it does not list
        return False
    return info.get("supports_assistant_prefill") is True
