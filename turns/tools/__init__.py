"""What a model may do besides writing."""

from __future__ import annotations

from typing import Final

from turns.tools import notes, read_message, search_history, webhook_post
from turns.tools.registry import Registry

# Other apps add theirs in their AppConfig.ready.
registry: Final = Registry()
registry.register(search_history.TOOL)
registry.register(read_message.TOOL)
for _tool in notes.TOOLS:
    registry.register(_tool)
registry.register(webhook_post.TOOL)
