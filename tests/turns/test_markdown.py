"""What a model writes reaches the page as text and simple elements, never as active content."""

from __future__ import annotations

import time
from html.parser import HTMLParser

import pytest

from turns.markdown import TAGS, render

ATTRIBUTES = {"href", "title", "start", "class", "rel", "target"}


class Elements(HTMLParser):
    """Collects what a browser would make of the HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: dict[str, set[str]] = {}
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, set()).add(value or "")


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "[x](javascript:alert(1))",
        "[x](JaVaScRiPt&#58;alert(1))",
        "[x](data:text/html,<script>alert(1)</script>)",
        "[x](vbscript:msgbox)",
        "![x](https://elsewhere.test/seen.png?secret)",
        "![x](javascript:alert(1))",
        "[x]: javascript:alert(1)\n\n[x]",
        '[x](https://a.test "onmouseover=alert(1)")',
        "<svg/onload=alert(1)>",
        '```"><script>alert(1)</script>\nx\n```',
        "```x onload=alert(1)\nx\n```",
        "<a href='javascript:alert(1)'>x</a>",
        "<javascript:alert(1)>",
        "\u202e<script>\x00</script>",
    ],
)
def test_nothing_active_comes_out(text: str) -> None:
    html = render(text)
    found = Elements(html)
    assert found.tags <= TAGS, html
    assert found.attributes.keys() <= ATTRIBUTES, html
    assert all(href.startswith("https://") for href in found.attributes.get("href", ())), html


def test_links_leave_without_a_trace_and_images_are_links() -> None:
    html = render("[a](https://a.test) ![b <i>](https://b.test/c.png)")
    rel = 'target="_blank" rel="noopener noreferrer nofollow"'
    assert f'<a href="https://a.test" {rel}>a</a>' in html
    assert f'<a href="https://b.test/c.png" {rel}>b &lt;i&gt;</a>' in html


def test_code_keeps_its_language_and_its_text() -> None:
    assert render("```python\nprint('<b>')\n```") == (
        "<pre><code class=\"language-python\">print('&lt;b&gt;')\n</code></pre>\n"
    )


def test_tables_lists_and_line_breaks_are_shown() -> None:
    assert "<th>a</th>" in render("|a|b|\n|-|-|\n|1|2|")
    assert render("3. x\n4. y").startswith('<ol start="3">')
    assert "<br>" in render("a\nb")
    assert "<s>gone</s>" in render("~~gone~~")


PIECES = ["> ", "[", "![", "*a ", "`", "a**b", "<", "&", "[a](", "- ", "|a", "_a_ ", "\\"]


@pytest.mark.parametrize("piece", [*PIECES, "#\n", "[a]: x\n", "((", "|a|\n|-|\n"])
def test_an_answer_at_its_bound_is_rendered_in_bounded_time(piece: str) -> None:
    text = piece * (65_536 // len(piece.encode()))
    began = time.process_time()
    html = render(text)
    assert time.process_time() - began < 10
    assert len(html) < 16 * len(text)
