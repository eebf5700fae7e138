"""The tokenizer that a GGUF file describes, as the files that transformers loads.

A GGUF holds vocabulary, merges and special tokens, but only the *name* of the rule by which text
is cut before merging (`tokenizer.ggml.pre`). A wrong rule gives plausible, wrong tokens, so a name
that is not listed here is refused. This module knows nothing of tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers as pre,
    processors,
)

from boughs.lang.errors import InvalidRequest, Unsupported

from .gguf import GgufFile

_CONTROL, _USER_DEFINED, _BYTE = 3, 4, 6
"""Values of `tokenizer.ggml.token_type`."""

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _REST
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _REST
_WORD = (  # of one case, or with its first letters in upper case; what may end it is left open
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
)
_SIGNS = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _REST
_TEKKEN = _WORD % ("", "") + r"|\p{N}" + _SIGNS
_GPT4O = _WORD % (_CONTRACTIONS + "?", _CONTRACTIONS + "?") + r"|\p{N}{1,3}" + _SIGNS


def _gpt2() -> pre.PreTokenizer:
    return pre.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> pre.PreTokenizer:
    return pre.Sequence([pre.Digits(individual_digits=True), _gpt2()])


def _split(pattern: str) -> pre.PreTokenizer:
    return pre.Sequence(
        [
            pre.Split(Regex(pattern), behavior="isolated"),
            pre.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


_PRE_TOKENIZERS: dict[str, Callable[[], pre.PreTokenizer]] = {
    "gpt-2": _gpt2,
    "smollm": _single_digits,
    "starcoder": _single_digits,
    "llama-bpe": lambda: _split(_LLAMA3),
    "dbrx": lambda: _split(_LLAMA3),
    "gpt-4o": lambda: _split(_GPT4O),
    "qwen2": lambda: _split(_QWEN2),
    "deepseek-r1-qwen": lambda: _split(_QWEN2),
    "tekken": lambda: _split(_TEKKEN),
}
_WHOLE_WORDS_FIRST = {"llama-bpe", "tekken"}
"""Vocabularies in which a whole word that is a token is taken without merging."""

_NFC = {"qwen2", "deepseek-r1-qwen"}
"""Vocabularies whose text is brought to the Unicode form NFC first."""


def build_tokenizer(file: GgufFile) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer of a file, and the content of its `tokenizer_config.json`.

    Raises:
        Unsupported: A kind of tokenizer or a rule of cutting that we do not have; names it.
        InvalidRequest: The vocabulary is missing.
    """
    tokens: list[str] | None = file.get("tokenizer.ggml.tokens")
    if not tokens:
        raise InvalidRequest(f"{file.path.name}: the file holds no vocabulary", "model_path")
    kind = file.get("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer = _byte_level(file, tokens)
    elif kind == "llama":
        tokenizer = _sentencepiece(file, tokens)
    else:
        raise Unsupported(
            f"{file.path.name}: a tokenizer of kind {kind!r} is not supported; "
            "there are gpt2 (byte-level BPE) and llama (SentencePiece BPE)",
            "model_path",
        )
    types: list[int] = file.get("tokenizer.ggml.token_type", [])
    for wanted, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        added = [
            AddedToken(token, normalized=False, special=special)
            for token, of in zip(tokens, types, strict=False)
            if of == wanted
        ]
        tokenizer.add_special_tokens(added) if special else tokenizer.add_tokens(added)
    config = _settings(file, tokens, adds_bos=kind == "llama")
    if config["add_bos_token"]:
        bos = config["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos}:0 $A:0",
            pair=f"{bos}:0 $A:0 {bos}:1 $B:1",
            special_tokens=[(bos, tokens.index(bos))],
        )
    return tokenizer, config


def _byte_level(file: GgufFile, tokens: list[str]) -> Tokenizer:
    """BPE over bytes, as GPT-2 has it."""
    rule = file.get("tokenizer.ggml.pre")
    if rule not in _PRE_TOKENIZERS:
        raise Unsupported(
            f"{file.path.name}: the pre-tokenizer {rule!r} (tokenizer.ggml.pre) is not supported; "
            f"there are {', '.join(sorted(_PRE_TOKENIZERS))}",
            "model_path",
        )
    merges = [merge.partition(" ")[::2] for merge in file.get("tokenizer.ggml.merges", [])]
    vocab = _vocabulary(tokens)
    for left, right in merges:
        if left not in vocab or right not in vocab or left + right not in vocab:
            raise InvalidRequest(
                f"{file.path.name}: the merge {left!r} {right!r} is not of its vocabulary",
                "model_path",
            )
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=merges,
            ignore_merges=rule in _WHOLE_WORDS_FIRST,
        )
    )
    if rule in _NFC:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[rule]()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(file: GgufFile, tokens: list[str]) -> Tokenizer:
    """BPE over characters, with byte tokens for what is missing, as Llama 2 has it.

    The file lists no merges: two neighbours merge where the vocabulary has the whole, best score
    first.
    """
    scores: list[float] = file.get("tokenizer.ggml.scores", [])
    if len(scores) != len(tokens):
        raise InvalidRequest(f"{file.path.name}: the vocabulary has no scores", "model_path")
    vocab = _vocabulary(tokens)
    merges = []
    for whole, index in vocab.items():
        for i in range(1, len(whole)):
            left, right = vocab.get(whole[:i]), vocab.get(whole[i:])
            if left is not None and right is not None:
                merges.append((-scores[index], left, right))
    merges.sort()
    unknown = file.get("tokenizer.ggml.unknown_token_id", 0)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=[(tokens[left], tokens[right]) for _, left, right in merges],
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces: list[Any] = [normalizers.Replace(" ", "▁")]
    undo: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if file.get("tokenizer.ggml.add_space_prefix", True):
        spaces.insert(0, normalizers.Prepend("▁"))
        undo.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(spaces)
    tokenizer.decoder = decoders.Sequence(undo)
    return tokenizer


def _vocabulary(tokens: list[str]) -> dict[str, int]:
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise Unsupported("a vocabulary in which a token occurs twice", "model_path")
    return vocab


def _settings(file: GgufFile, tokens: list[str], *, adds_bos: bool) -> dict[str, Any]:
    """The content of `tokenizer_config.json`. `adds_bos` holds where the file does not say."""
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(file.need("context_length")),
    }
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    for ours, theirs in names.items():
        index = file.get(f"tokenizer.ggml.{theirs}_token_id")
        if index is not None:
            config[f"{ours}_token"] = tokens[index]
    if file.get("tokenizer.ggml.add_eos_token", False):
        raise Unsupported(f"{file.path.name}: a tokenizer that ends every prompt with EOS")
    wants_bos = bool(file.get("tokenizer.ggml.add_bos_token", adds_bos))
    config["add_bos_token"] = wants_bos and "bos_token" in config
    template = file.get("tokenizer.chat_template")
    if template is not None:
        config["chat_template"] = template
    return config
