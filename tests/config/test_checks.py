from __future__ import annotations

import pytest
from pytest_django.fixtures import Settings

from config.checks import installation_agrees

CASES = [
    ("config.E001", {"DATABASE_POOLED": True, "EMBEDDED_DATABASE": True}),
    ("config.E002", {"CHANNEL_URL": "amqp://127.0.0.1"}),
    ("config.E003", {"CHANNEL_URL": "", "DATABASE_POOLED": True, "DIRECT_DATABASE_URL": ""}),
    ("config.W001", {"BROKER_URL": "", "EMBEDDED_DATABASE": False}),
    ("config.E004", {"LLM_API": "telepathy"}),
    ("config.E005", {"LLM_API": "responses", "LLM_BASE_URL": ""}),
    ("config.E006", {"LLM_BASE_URL": "ftp://127.0.0.1/v1"}),
]


@pytest.fixture
def sound(settings: Settings) -> Settings:
    settings.EMBEDDED_DATABASE = False
    settings.DATABASE_POOLED = False
    settings.DIRECT_DATABASE_URL = ""
    settings.BROKER_URL = "amqp://127.0.0.1"
    settings.CHANNEL_URL = "redis://127.0.0.1"
    settings.LLM_API = "responses"
    settings.LLM_BASE_URL = "http://127.0.0.1:9/v1"
    return settings


def test_a_sound_installation_is_accepted(sound: Settings) -> None:
    assert installation_agrees(None) == []


@pytest.mark.parametrize(("number", "wrong"), CASES, ids=[number for number, _ in CASES])
def test_a_contradiction_is_named_by_its_number(
    sound: Settings, number: str, wrong: dict[str, object]
) -> None:
    for name, value in wrong.items():
        setattr(sound, name, value)
    assert [message.id for message in installation_agrees(None)] == [number]
