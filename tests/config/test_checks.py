from __future__ import annotations

from dataclasses import replace

import pytest
from pytest_django.fixtures import Settings

from config.checks import installation_agrees
from semantic.embedders.minilm import MiniLmEmbedder

CASES = [
    ("config.E001", {"DATABASE_POOLED": True, "EMBEDDED_DATABASE": True}),
    ("config.E002", {"CHANNEL_URL": "amqp://127.0.0.1"}),
    ("config.E003", {"CHANNEL_URL": "", "DATABASE_POOLED": True, "DIRECT_DATABASE_URL": ""}),
    ("config.W001", {"BROKER_URL": "", "EMBEDDED_DATABASE": False}),
    ("config.E004", {"LLM_API": "telepathy"}),
    ("config.E005", {"LLM_API": "responses", "LLM_BASE_URL": ""}),
    ("config.E006", {"LLM_BASE_URL": "ftp://127.0.0.1/v1"}),
    ("config.E007", {"EMBEDDINGS_API": "telepathy"}),
    ("config.E008", {"EMBEDDINGS_API": "local", "EMBEDDINGS_MODEL": "word2vec"}),
    ("config.E010", {"EMBEDDINGS_BASE_URL": ""}),
    ("config.E011", {"EMBEDDINGS_BASE_URL": "ftp://127.0.0.1/v1"}),
    ("config.E011", {"EMBEDDINGS_BASE_URL": "https://me:hush@127.0.0.1/v1"}),
    ("config.E011", {"EMBEDDINGS_BASE_URL": "https://127.0.0.1/v1?key=hush"}),
    ("config.E011", {"EMBEDDINGS_BASE_URL": "https://[127.0.0.1/v1"}),
    ("config.E012", {"EMBEDDINGS_MODEL": ""}),
    ("config.E012", {"EMBEDDINGS_MODEL": "m" * 201}),
    ("config.E013", {"EMBEDDINGS_DIMENSIONS": 2_001}),
    ("config.E013", {"EMBEDDINGS_DIMENSIONS": -1}),
    ("config.E014", {"EMBEDDINGS_BATCH_ITEMS": 0}),
    ("config.E014", {"EMBEDDINGS_BATCH_ITEMS": 2_049}),
    ("config.E015", {"EMBEDDINGS_QUERY_PREFIX": "p" * 65}),
    ("config.E015", {"EMBEDDINGS_PASSAGE_PREFIX": "p" * 65}),
    ("config.E016", {"EMBEDDINGS_TEXT_BYTES": 63}),
    ("config.E016", {"EMBEDDINGS_TEXT_BYTES": 24_577}),
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
    settings.EMBEDDINGS_API = "openai"
    settings.EMBEDDINGS_BASE_URL = "http://127.0.0.1:9/v1"
    settings.EMBEDDINGS_MODEL = "scripted"
    return settings


def test_a_sound_installation_is_accepted(sound: Settings) -> None:
    assert installation_agrees(None) == []


@pytest.mark.parametrize("model", ["wordllama", "minilm"])
def test_weights_on_this_machine_need_no_address(sound: Settings, model: str) -> None:
    sound.EMBEDDINGS_API, sound.EMBEDDINGS_MODEL = "local", model
    sound.EMBEDDINGS_BASE_URL = ""
    assert installation_agrees(None) == []


def test_weights_that_are_not_installed_are_named(
    sound: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound.EMBEDDINGS_API, sound.EMBEDDINGS_MODEL = "local", "minilm"
    elsewhere = replace(MiniLmEmbedder.weights, package="no_such_package_here")
    monkeypatch.setattr(MiniLmEmbedder, "weights", elsewhere)
    (message,) = installation_agrees(None)
    assert message.id == "config.E009"
    assert "no_such_package_here" in message.msg


@pytest.mark.parametrize(("number", "wrong"), CASES, ids=[number for number, _ in CASES])
def test_a_contradiction_is_named_by_its_number(
    sound: Settings, number: str, wrong: dict[str, object]
) -> None:
    for name, value in wrong.items():
        setattr(sound, name, value)
    assert [message.id for message in installation_agrees(None)] == [number]
