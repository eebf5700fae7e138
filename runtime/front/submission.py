"""One choice of a request in the core, and what is needed to go on with it in another.

This module knows no link and no text.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from boughs.lang.errors import BoughsError
from boughs.runtime.messages import Output, Submit

Deliver = Callable[[Output | BoughsError], None]


class Submission:
    """One choice of a request in the core.

    Args:
        message: As submitted at first.
        deliver: Gets every output, or the error that ends the submission.

    Attributes:
        tokens: Produced so far, in this life of the core and before.
        healed: How many of them spell the prompt's end alone.
        cached_tokens: The first figure that a core gave.
        forward_steps: Steps of the model so far, in all lives of the core.
        started: Whether a core has answered.
        tries: How many cores have been given it.
    """

    def __init__(self, message: Submit, deliver: Deliver) -> None:
        self.message = message
        self.deliver = deliver
        self.tokens: list[int] = []
        self.healed = 0
        self.cached_tokens = 0
        self.forward_steps = 0
        self._steps_before = 0  # in former lives
        self.started = False
        self.has_prompt_logprobs = False
        self.tries = 0

    def take(self, output: Output) -> None:
        """Note what a core produced, and hand it on."""
        if not self.started:
            self.started = True
            self.cached_tokens = output.cached_tokens
        output.forward_steps += self._steps_before
        self.forward_steps = output.forward_steps
        self.tokens += output.ids
        self.healed += output.healed
        self.has_prompt_logprobs |= output.prompt_logprobs is not None
        self.deliver(output)

    def next_message(self) -> Submit:
        """The message that goes on where the last core stopped, if one did."""
        self.tries += 1
        if self.tries == 1:
            return self.message
        self._steps_before = self.forward_steps
        wanted = None if self.has_prompt_logprobs else self.message.prompt_logprobs_from
        return msgspec.structs.replace(
            self.message,
            output_ids=list(self.tokens),
            healed=self.healed,
            prompt_logprobs_from=wanted,
        )
