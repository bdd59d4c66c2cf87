"""The settings of a worker that also has the test tools."""

from config.settings import *  # noqa: F403
from config.settings import INSTALLED_APPS as SHIPPED

INSTALLED_APPS = [*SHIPPED, "tests.support.toolbox.Toolbox"]
