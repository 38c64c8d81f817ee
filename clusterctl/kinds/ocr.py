"""Models that read pages. The proof is a page with a word and a number drawn here."""

from __future__ import annotations

from dataclasses import replace

from clusterctl.kinds.kind import Ask
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
_TEXT, _DOT, _MARGIN = "HELLO 42", 6, 24


def page() -> bytes:
    """Return a white page with black letters."""
    width = 2 * _MARGIN + len(_TEXT) * 6 * _DOT
    blank, rows = WHITE * width, []
    for line in range(7):
        dots = ".".join(_LETTERS[letter][line] for letter in _TEXT) + "."
        row = b"".join((BLACK if dot == "#" else WHITE) * _DOT for dot in dots)
        rows += [WHITE * _MARGIN + row + WHITE * _MARGIN] * _DOT
    return png([blank] * _MARGIN + rows + [blank] * _MARGIN)


def _read_page(text: str, tokens: int) -> Ask:
    return about_picture(text, page(), tokens)


OCR = replace(
    VISION,
    name="ocr",
    result="texts of pages",
    ask=_read_page,
    proof=lambda: _read_page("Read the text of this page.", 64),
    judge=says("hello", "it reads the word on a page"),
    unit="pages",
    bench=None,
    architectures=("*OCR*", "GotOcr*"),
)
