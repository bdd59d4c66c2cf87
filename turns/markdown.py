"""A model's Markdown as HTML that is safe to put into the page.

Two layers, each enough alone: the parser knows no raw HTML, and what it renders passes a
sanitiser that knows only the elements below. Images stay links: fetching an address a model
wrote would tell its server that the answer was read.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from functools import lru_cache
from typing import Any, Final

import nh3
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import OptionsDict

# 65,536 bytes of answer at most, times this: a bounded cache of rendered answers.
CACHED_ANSWERS: Final = 512
# A quotation in a quotation in a quotation ... is an attack on the parser, not an answer.
MAX_NESTING: Final = 12

# fmt: off
TAGS: Final = frozenset({
    "a", "blockquote", "br", "code", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol",
    "p", "pre", "s", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
})
# fmt: on
ATTRIBUTES: Final = {"a": {"href", "title"}, "ol": {"start"}, "code": {"class"}}
SCHEMES: Final = frozenset({"http", "https", "mailto"})


@lru_cache(maxsize=CACHED_ANSWERS)
def render(text: str) -> str:
    """Return `text` as HTML without script, style, image, frame, form or foreign scheme."""
    return nh3.clean(
        _parser.render(text),
        tags=set(TAGS),
        attributes={tag: set(names) for tag, names in ATTRIBUTES.items()},
        attribute_filter=_only_language_classes,
        url_schemes=set(SCHEMES),
        link_rel="noopener noreferrer nofollow",
        set_tag_attribute_values={"a": {"target": "_blank"}},
    )


def _only_language_classes(tag: str, name: str, value: str) -> str | None:
    if (tag, name) != ("code", "class"):
        return value
    return value if value.startswith("language-") and " " not in value else None


def _render_image(
    _self: RendererHTML,
    tokens: Sequence[Token],
    index: int,
    _options: OptionsDict,
    _env: MutableMapping[str, Any],
) -> str:
    """Return an image as a link to it."""
    token = tokens[index]
    name = token.content or "image"
    link = Token("link_open", "a", 1, attrs={"href": token.attrs.get("src", "")})
    return f"{_self.renderToken([link], 0, _options, _env)}{_escaped(name)}</a>"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


_parser: Final = MarkdownIt(
    "commonmark", {"html": False, "breaks": True, "maxNesting": MAX_NESTING}
).enable(["table", "strikethrough"])
_parser.add_render_rule("image", _render_image)
