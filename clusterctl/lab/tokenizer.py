"""A small byte-level BPE tokenizer: trained here, on our own text, the same every time.

It covers every byte, so any prompt can be encoded. Where a model has more rows than there
is to learn from a page of text, the rest of the vocabulary are made-up words: nothing is
ever encoded to them, but every token that a model with random weights picks can be read.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from typing import Any

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (END_OF_TEXT, TURN_START, TURN_END)
MERGES = 240

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_TEXT = """
A cluster is a group of hosts that work on one thing. Each host has a name, an address and
a network card, and some of the cards are faster than the others. The head host keeps the
list of all the others; when a worker starts, it says hello to the head and tells how many
devices it has. A model that is too large for one device is cut into parts, and each part
stays on its own device. For every token the parts exchange what they have found, so the
network between the hosts is as much a part of the machine as the memory is. When a host
goes away, the others notice it after a while, stop what they are doing and start again.
Who wants to know what is going on asks for the status: it shows the hosts, the devices and
the services, and what each of them is waiting for. The first question to ask of a system
is whether it answers; the second is how long it takes; the third is what it costs.
"""
_WORD = re.compile(r" ?\w+| ?[^\w\s]+|\s+")
_SYLLABLES = [first + last for first in "bdfgklmnprstvz" for last in "aeiou"]


def byte_symbols() -> dict[int, str]:
    """The printable character that stands for each byte in byte-level vocabularies: itself
    where it can be printed, else the next free one from U+0100 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    free = itertools.count(256)
    return {byte: chr(byte if byte in printable else next(free)) for byte in range(256)}


def train(text: str, count: int) -> list[tuple[str, str]]:
    """The `count` most useful merges for a text, in order; ties go by the alphabet."""
    symbols = byte_symbols()
    words = Counter(_WORD.findall(text))
    split = {word: [symbols[byte] for byte in word.encode()] for word in words}
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in split.items():
            for pair in itertools.pairwise(parts):
                pairs[pair] += words[word]
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        split = {word: _merge(parts, best) for word, parts in split.items()}
    return merges


def tokenizer_files(size: int) -> dict[str, Any]:
    """File names and JSON contents of a tokenizer with exactly `size` tokens, the special
    ones last."""
    merges = train(_TEXT, MERGES)
    vocabulary = [*byte_symbols().values(), *("".join(pair) for pair in merges)]
    vocabulary += _made_up_words(size - len(vocabulary) - len(SPECIAL), set(vocabulary))
    ids = {token: number for number, token in enumerate(vocabulary)}
    first_special = len(vocabulary)
    added = [
        {"id": first_special + offset, "content": token, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False, "special": True}
        for offset, token in enumerate(SPECIAL)
    ]  # fmt: skip
    return {
        "tokenizer.json": _tokenizer(ids, [list(pair) for pair in merges], added),
        "tokenizer_config.json": _TOKENIZER_CONFIG,
    }


_TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "add_prefix_space": False,
    "eos_token": TURN_END,
    "pad_token": END_OF_TEXT,
    "model_max_length": 32768,
    "clean_up_tokenization_spaces": False,
    "chat_template": CHAT_TEMPLATE,
}


def _tokenizer(
    ids: dict[str, int], merges: list[list[str]], added: list[dict[str, Any]]
) -> dict[str, Any]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False,
                  "byte_fallback": False, "vocab": ids, "merges": merges},
    }  # fmt: skip


def _made_up_words(count: int, taken: set[str]) -> list[str]:
    """`count` words of two to four syllables with a space before them, none of them taken."""
    space = byte_symbols()[ord(" ")]
    words = (
        space + "".join(parts)
        for length in (2, 3, 4)
        for parts in itertools.product(_SYLLABLES, repeat=length)
    )
    return list(itertools.islice((word for word in words if word not in taken), count))


def _merge(parts: list[str], pair: tuple[str, str]) -> list[str]:
    """`parts` with every occurrence of the pair joined."""
    merged: list[str] = []
    for part in parts:
        if merged and (merged[-1], part) == pair:
            merged[-1] += part
        else:
            merged.append(part)
    return merged
