"""`Runtime`: a server of one's own, with its model's tokenizer at hand.

The server is `boughs.lang.launch`'s, which knows no tokenizers. This module knows no requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from boughs.lang import launch, loop

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Runtime(launch.Runtime):
    """A server in a process of its own, usable as a backend: `boughs.lang.launch.Runtime`."""

    def get_tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer, of the class that transformers has for it.

        Raises:
            NotFound: The model's folder has no tokenizer.
        """
        from boughs.runtime.front.tokenizer import Tokenizer

        info = loop.run(self.endpoint.get_server_info())
        return Tokenizer.load(info["model_path"]).hf
