"""Tokenizers and small text encoders, built in memory: a closed vocabulary of whole words, characters for the rest."""

from functools import cache
from itertools import pairwise

import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
)

from training.objects import words

LENGTH = 24  # tokens of a prompt, start and end included: captions need 12, unknown words are spelled out
SPECIALS = 2  # start and end of text


@cache
def clip_tokenizer() -> CLIPTokenizer:
    """Byte-pair tokenizer whose merges join exactly our words; anything else falls apart into characters."""
    letters = sorted(ByteLevel.alphabet())
    pieces = ["<|startoftext|>", "<|endoftext|>", *letters, *(letter + "</w>" for letter in letters)]
    merges: list[tuple[str, str]] = []
    for word in words():
        add_merges(word, merges)
    pieces += [left + right for left, right in merges]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    return CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=LENGTH)


def add_merges(word: str, merges: list[tuple[str, str]]) -> None:
    """Append the merges that make `word` one token.  Appending cannot break a word that is one token already."""
    pieces = apply_merges([*word[:-1], word[-1] + "</w>"], merges)
    while len(pieces) > 1:
        merges.append((pieces[0], pieces[1]))
        pieces = apply_merges(pieces, merges)


def apply_merges(pieces: list[str], merges: list[tuple[str, str]]) -> list[str]:
    """Byte-pair encoding: again and again join the adjacent pair that was learnt first."""
    rank = {pair: index for index, pair in reversed(list(enumerate(merges)))}
    while True:
        pairs = [(rank[pair], at) for at, pair in enumerate(pairwise(pieces)) if pair in rank]
        if not pairs:
            return pieces
        at = min(pairs)[1]
        pieces = [*pieces[:at], pieces[at] + pieces[at + 1], *pieces[at + 2 :]]


@cache
def t5_tokenizer() -> T5Tokenizer:
    """Unigram tokenizer: our words are likely, single characters are possible."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -4.0)]
    pieces += [("▁" + word, -2.0) for word in words() if word.isalpha() and len(word) > 1]
    pieces += [("▁a", -2.0)] + [(chr(code), -8.0) for code in range(33, 127)]
    return T5Tokenizer(vocab=pieces, model_max_length=LENGTH, extra_ids=0)


def clip_config(width: int, layers: int = 2) -> CLIPTextConfig:
    return CLIPTextConfig(
        vocab_size=len(clip_tokenizer()), hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers,
        num_attention_heads=width // 32, max_position_embeddings=LENGTH, projection_dim=width, hidden_act="gelu",
        bos_token_id=0, eos_token_id=1, pad_token_id=1,
    )  # fmt: skip


def clip_text(width: int, projected: bool = False) -> CLIPTextModel | CLIPTextModelWithProjection:
    return (CLIPTextModelWithProjection if projected else CLIPTextModel)(clip_config(width))


def t5_text(width: int) -> T5EncoderModel:
    return T5EncoderModel(
        T5Config(
            vocab_size=len(t5_tokenizer()), d_model=width, d_kv=32, d_ff=2 * width, num_layers=2,
            num_heads=width // 32, dropout_rate=0.0, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
        )
    )  # fmt: skip


def token_ids(tokenizer: CLIPTokenizer | T5Tokenizer, captions: list[str]) -> torch.Tensor:
    """(captions, LENGTH) ids, padded as the pipelines pad."""
    return tokenizer(captions, padding="max_length", max_length=LENGTH, truncation=True, return_tensors="pt").input_ids
