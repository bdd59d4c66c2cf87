"""An app of tools that do to a worker what tools must not, registered as any app's are."""

from __future__ import annotations

from django.apps import AppConfig


class Toolbox(AppConfig):
    """Registers the tools of `tests.support.blocking_tools`."""

    name = "tests.support"
    label = "toolbox"

    def ready(self) -> None:
        from tests.support import blocking_tools  # noqa: PLC0415 - the models are ready only now
        from turns.tools import registry  # noqa: PLC0415

        for tool in blocking_tools.TOOLS:
            registry.register(tool)
