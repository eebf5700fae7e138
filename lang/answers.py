"""What answers become in a state: text, and the variable's value.

This module knows no requests and no streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from boughs.lang import choices, ir
from boughs.lang.call import Author, Call
from boughs.lang.contents import Contents
from boughs.lang.errors import BoughsError
from boughs.lang.failure import Failure
from boughs.lang.reasoning import SUFFIX
from boughs.lang.results import Answer, Scores


def put_answers(
    contents: Contents,
    node: ir.Gen,
    answers: Sequence[Answer],
    metas: list[Any],
    *,
    call: Call,
    where: str,
) -> None:
    """Append the first answer to a state, and set the variable to the value of each.

    Args:
        contents: The state's.
        node: The gen that they answer.
        answers: One for each of the choices.
        metas: The meta info of each.
        call: The request.
        where: The place of an error, for its message.
    """
    texts = [answer.text for answer in answers]
    values: list[Any] = list(texts)
    if node.reasoning is not None:
        thoughts, values = map(list, zip(*map(node.reasoning.split, texts), strict=True))
        _set(contents, f"{node.name}{SUFFIX}", thoughts, [{} for _ in answers])
    if values[0] == texts[0]:
        contents.add_answer(answers[0], Author("model", call))
    else:
        contents.add_content(values[0], Author("model", call))
    cuts = [a.finish is not None and a.finish.type == "length" for a in answers]
    if node.parts is not None:
        _put_parts(contents, node.parts, list(zip(texts, cuts, strict=True)), where)
    if node.name is None:
        return
    if node.kind is not None:
        values = [node.kind.read(t, cut=cut) for t, cut in zip(texts, cuts, strict=True)]
    _set(contents, node.name, values, metas)
    if node.kind is None and node.reasoning is None:
        return
    contents.raws[node.name] = texts[0] if len(texts) == 1 else texts
    errors = [value for value in values if isinstance(value, BoughsError)]
    if errors and not node.keeps_errors:
        contents.unread[node.name] = Failure(errors[0], where)
        call.problem = str(errors[0])


def put_choice(contents: Contents, node: ir.Select, scores: Scores, call: Call) -> None:
    """Decide between the choices of a select, append the decision, and set the variable.

    Args:
        contents: The state's.
        node: The select.
        scores: What the backend answered.
        call: The request.

    Raises:
        BoughsError: The scores do not fit, or the method decides for none of the choices.
    """
    texts = list(node.choices)
    contents.render(scores.rendered or ())
    decision = choices.decide(node.method, texts, scores)
    value = decision.decision
    if scores.chosen is None:
        call.probs = choices.probabilities(texts, scores)
    contents.add_choice(value, call)
    if node.name is None:
        return
    meta = {
        "id": call.rid,
        "prompt_tokens": scores.prompt_tokens,
        "completion_tokens": scores.completion_tokens,
        "cached_tokens": scores.cached_tokens,
        **({"forward_steps": scores.forward_steps} if scores.forward_steps else {}),
        **(scores.extra or {}),
        **(decision.meta_info or {}),
    }
    contents.set(node.name, node.values[value] if node.values else value, meta)
    if node.values:
        contents.raws[node.name] = value
    if call.probs is not None:
        contents.probs[node.name] = call.probs


def _put_parts(
    contents: Contents, parts: ir.PartReader, texts: list[tuple[str, bool]], where: str
) -> None:
    """Set the variables that the named parts of texts are."""
    read = [parts.read(text, cut=cut) for text, cut in texts]
    for name in parts.names:
        values = [each[name] for each in read]
        _set(contents, name, values, [{} for _ in values])
        errors = [value for value in values if isinstance(value, BoughsError)]
        if errors:
            contents.unread[name] = Failure(errors[0], where)


def _set(contents: Contents, name: str, values: list[Any], metas: list[Any]) -> None:
    """Set a variable to its one value, or to those of many choices."""
    one = len(values) == 1
    contents.set(name, values[0] if one else values, metas[0] if one else metas)
