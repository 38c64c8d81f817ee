"""Models that read pages. The proof is a page with a word and a number drawn here."""

from __future__ import annotations

from dataclasses import replace
from typing import Sequence

from clusterctl.kinds.kind import Ask, Bench
from clusterctl.kinds.vision import BLACK, VISION, WHITE, about_picture, png, says

# Five columns and seven rows of each letter
_LETTERS = {
    "H": ("#...#", "#...#", "#...#", "#####", "#...#", "#...#", "#...#"),
    "E": ("#####", "#....", "#....", "####.", "#....", "#....", "#####"),
    "L": ("#....", "#....", "#....", "#....", "#....", "#....", "#####"),
    "O": (".###.", "#...#", "#...#", "#...#", "#...#", "#...#", ".###."),
    "4": ("#..#.", "#..#.", "#..#.", "#####", "...#.", "...#.", "...#."),
    "2": (".###.", "#...#", "....#", "...#.", "..#..", ".#...", "#####"),
    " ": (".....",) * 7,
}
_TEXT, _MARGIN = "HELLO 42", 24

# A4 with 150 dots per inch, in `bench`
_COLUMNS, _LINES, _A4_DOT = 49, 44, 4  # Characters, lines, pixels


def page(lines: Sequence[str] = (_TEXT,), dot: int = 6) -> bytes:
    """Return a white page with black letters, in lines of one length, of `dot` pixels a dot."""
    width = 2 * _MARGIN + len(lines[0]) * 6 * dot
    blank, rows = WHITE * width, []
    for text in lines:
        for line in range(7):
            dots = ".".join(_LETTERS[letter][line] for letter in text) + "."
            row = b"".join((BLACK if each == "#" else WHITE) * dot for each in dots)
            rows += [WHITE * _MARGIN + row + WHITE * _MARGIN] * dot
        rows += [blank] * 2 * dot
    return png([blank] * _MARGIN + rows + [blank] * (_MARGIN - 2 * dot))


def _read_page(text: str, tokens: int) -> Ask:
    return about_picture(text, page(), tokens)


def _measured(number: int, tokens: int) -> Ask:
    """Ask for a whole page that vLLM has not cached: its first line is the number, in bits."""
    first = f"{number:b}".translate({ord("0"): "2", ord("1"): "4"}).ljust(_COLUMNS)
    text = (_TEXT + " ") * _COLUMNS
    lines = [first, *(text[n : n + _COLUMNS] for n in range(1, _LINES))]
    asked = about_picture("Read the text of this page.", page(lines, _A4_DOT), tokens)
    return replace(asked, body={**asked.body, "ignore_eos": True})


OCR = replace(
    VISION,
    name="ocr",
    result="texts of pages",
    ask=_read_page,
    proof=lambda: _read_page("Read the text of this page.", 64),
    judge=says("hello", "it reads the word on a page"),
    unit="pages",
    per="min",
    bench=Bench(ask=_measured, sent="a page of 44 lines and 1224 x 1624 pixels in each request"),
    architectures=("*OCR*", "GotOcr*"),
)
