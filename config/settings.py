"""Settings, all of them, from the environment (docs/settings.md)."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import django_stubs_ext
import environ
import psycopg
from django.core.exceptions import ImproperlyConfigured
from psycopg.conninfo import conninfo_to_dict

from config.embedded.paths import Home
from config.embedded.secrets import secret

# `ModelAdmin[Turn]` and the like, which strict typing asks for, work at run time as well.
django_stubs_ext.monkeypatch()

BASE_DIR = Path(__file__).resolve().parent.parent


class _Environment(environ.Env):  # type: ignore[misc]  # untyped
    """The environment, in which a variable set to nothing is as good as unset: that is how
    unit files and compose files leave one out."""

    ENVIRON = {name: value for name, value in os.environ.items() if value}

    def get_value(self, var: str, *args: Any, **kwargs: Any) -> Any:
        """Return it, or say which variable cannot be read. Its value may be a secret."""
        try:
            return super().get_value(var, *args, **kwargs)
        except ValueError as error:
            raise ImproperlyConfigured(f"{var} must be a number") from error


env = _Environment()

# --- The environment --------------------------------------------------------------------------

HOLDFAST_HOME = Path(env.str("HOLDFAST_HOME", default=str(BASE_DIR / ".holdfast"))).resolve()
DATABASE_URL = env.str("DATABASE_URL", default="")
DIRECT_DATABASE_URL = env.str("DIRECT_DATABASE_URL", default="")
DATABASE_POOLED = env.bool("DATABASE_POOLED", default=False)
BROKER_URL = env.str("BROKER_URL", default="")
CHANNEL_URL = env.str("CHANNEL_URL", default="")
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["127.0.0.1", "localhost", "[::1]"])
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])
DEBUG = env.bool("DEBUG", default=False)
HTTPS = env.bool("HTTPS", default=False)

LLM_APIS = ("local", "responses", "chat")
LLM_API = env.str("LLM_API", default="local")
LLM_BASE_URL = env.str("LLM_BASE_URL", default="")
LLM_API_KEY = env.str("LLM_API_KEY", default="")
LLM_MODEL = env.str("LLM_MODEL", default="smollm2-135m" if LLM_API == "local" else "")
LLM_CONTEXT_BYTES = env.int(
    "LLM_CONTEXT_BYTES", default=4_096 if LLM_API == "local" else 96 * 1024
)

HOLDFAST_LEASE_SECONDS = env.float("HOLDFAST_LEASE_SECONDS", default=15.0)
HOLDFAST_SWEEP_SECONDS = env.float("HOLDFAST_SWEEP_SECONDS", default=1.0)
HOLDFAST_LIVENESS = env.str("HOLDFAST_LIVENESS", default="lock")
# Programs of coding jobs: whether they must be held by the kernel, and what else they may read.
HOLDFAST_CODING_SANDBOX = env.str("HOLDFAST_CODING_SANDBOX", default="required")
HOLDFAST_CODING_READABLE = env.list("HOLDFAST_CODING_READABLE", default=[])

EMBEDDINGS_APIS = ("local", "openai")
EMBEDDINGS_API = env.str("EMBEDDINGS_API", default="local")
EMBEDDINGS_BASE_URL = env.str("EMBEDDINGS_BASE_URL", default="")
EMBEDDINGS_API_KEY = env.str("EMBEDDINGS_API_KEY", default="")
EMBEDDINGS_MODEL = env.str(
    "EMBEDDINGS_MODEL", default="wordllama" if EMBEDDINGS_API == "local" else ""
)
# 0: as long as the model makes them.
EMBEDDINGS_DIMENSIONS = env.int("EMBEDDINGS_DIMENSIONS", default=0)
EMBEDDINGS_BATCH_ITEMS = env.int("EMBEDDINGS_BATCH_ITEMS", default=32)
EMBEDDINGS_TEXT_BYTES = env.int("EMBEDDINGS_TEXT_BYTES", default=24 * 1024)
EMBEDDINGS_QUERY_PREFIX = env.str("EMBEDDINGS_QUERY_PREFIX", default="")
EMBEDDINGS_PASSAGE_PREFIX = env.str("EMBEDDINGS_PASSAGE_PREFIX", default="")
# Both are read when numpy and tokenizers are loaded, after this. One thread each: embedding in
# the background leaves the other cores to the answers.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# --- Secrets: yours, or generated once for the embedded installation --------------------------

HOME = Home(HOLDFAST_HOME)
EMBEDDED_DATABASE = not DATABASE_URL
SECRET_KEY = env.str("SECRET_KEY", default="")
if not SECRET_KEY:
    if not EMBEDDED_DATABASE:
        raise ImproperlyConfigured("SECRET_KEY is required where DATABASE_URL is set")
    SECRET_KEY = secret(HOME, "secret_key")

# --- Database ---------------------------------------------------------------------------------


def _running_embedded_url() -> str:
    """Return the address that `manage.py up` leaves here while it runs."""
    try:
        return (HOME.running / "database_url").read_text().strip()
    except FileNotFoundError:
        # Nothing listens on port 1: what needs the database says so, the rest works without.
        return "postgresql://holdfast@127.0.0.1:1/holdfast"


CONNECTION_KEYS = {
    "NAME": "dbname",
    "USER": "user",
    "PASSWORD": "password",
    "HOST": "host",
    "PORT": "port",
}


def database(url: str) -> dict[str, object]:
    """Return Django's description of the PostgreSQL database at `url`.

    The driver's own parser reads it, so that sockets, several hosts and every parameter mean
    here what they mean to libpq.
    """
    if not url.startswith(("postgres://", "postgresql://")):
        raise ImproperlyConfigured("DATABASE_URL must be a postgresql:// address")
    try:
        said = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        # The driver's words quote the address, with pieces of its password.
        raise ImproperlyConfigured(
            "DATABASE_URL cannot be read; in a password write %2F for /, %40 for @, %25 for %"
        ) from None
    options: dict[str, object] = {
        "application_name": "holdfast",
        "connect_timeout": 5,
        # A peer that vanished without a word is noticed before a lease (15 s) runs out.
        "keepalives": 1,
        "keepalives_idle": 3,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": 9_000,
    }
    if DATABASE_POOLED:
        # A transaction pooler hands each transaction to any session: no prepared statements,
        # and what is below belongs to the role (docs/deployment.md).
        options["prepare_threshold"] = None
    else:
        # A process frozen inside a transaction must not hide a row behind SKIP LOCKED for long.
        options["options"] = (
            "-c idle_in_transaction_session_timeout=5s -c lock_timeout=5s"
            " -c statement_timeout=30s"
            # A statement that waited for a lock looks at what it waited for, whatever level the
            # database or the role begin with.
            r" -c default_transaction_isolation=read\ committed"
        )
    if "options" in said and "options" in options:
        said["options"] = f"{options['options']} {said['options']}"
    place = {name: str(said.pop(key, "")) for name, key in CONNECTION_KEYS.items()}
    return {
        "ENGINE": "django.db.backends.postgresql",
        **place,
        "CONN_MAX_AGE": None,
        "CONN_HEALTH_CHECKS": True,
        "DISABLE_SERVER_SIDE_CURSORS": DATABASE_POOLED,
        "OPTIONS": {**options, **said},
    }


DATABASES = {"default": database(DATABASE_URL or _running_embedded_url())}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# --- Django -----------------------------------------------------------------------------------

INSTALLED_APPS = [
    "config",
    "recovery",
    "turns",
    "work",
    "semantic",
    "pgtrigger",
    "channels",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
]
MIDDLEWARE = [
    "config.health.health",
    "config.api.json_refusals",
    "django.middleware.security.SecurityMiddleware",
    "config.headers.content_security",
    "config.static.StaticFiles",
    "config.api.json_refusals",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
ROOT_URLCONF = "config.urls"
ASGI_APPLICATION = "config.asgi.application"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "/login/"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/login/"
LANGUAGE_CODE = "en"
USE_TZ = True
TIME_ZONE = "UTC"

# HTTPS says that a proxy in front speaks TLS and names the scheme it was asked by.
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if HTTPS else None
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0
SECURE_SSL_REDIRECT = HTTPS
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
DATA_UPLOAD_MAX_MEMORY_SIZE = 1024 * 1024

STATIC_URL = "/static/"
STATIC_ROOT = None
# Served by whitenoise straight from the apps: they are few and small, with no build step.
WHITENOISE_USE_FINDERS = True
WHITENOISE_ALLOW_ALL_ORIGINS = False

# --- Hints: Channels and Celery ---------------------------------------------------------------
# Hints carry ids of one database, so queue and channel names carry its name: two installations
# on one broker never take each other's.


def hint_scope(database_name: str) -> str:
    """Return the name of the queue, and the prefix of channels, for one database."""
    return "holdfast-" + re.sub(r"[^A-Za-z0-9_-]", "-", database_name)


HINT_SCOPE = hint_scope(str(DATABASES["default"]["NAME"]))
CHANNEL_LAYERS: dict[str, dict[str, object]]
if CHANNEL_URL:
    CHANNEL_LAYERS = {
        "default": {
            "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
            "CONFIG": {"hosts": [CHANNEL_URL], "prefix": HINT_SCOPE},
        }
    }
else:
    CHANNEL_LAYERS = {"default": {"BACKEND": "config.channel_layer.NotifyChannelLayer"}}

CELERY_TASK_DEFAULT_QUEUE = HINT_SCOPE
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = False
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_PUBLISH_RETRY = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_WORKER_ENABLE_REMOTE_CONTROL = False
CELERY_WORKER_REDIRECT_STDOUTS = False
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_PREFETCH_MULTIPLIER = 8
CELERY_TIMEZONE = TIME_ZONE
# In memory: two beats, or none for an hour, are safe, so there is nothing to remember.
CELERY_BEAT_SCHEDULER = "celery.beat:Scheduler"
# One of three triggers of the sweep. A message that waited longer has been overtaken.
CELERY_BEAT_SCHEDULE = {
    "sweep": {
        "task": "recovery.tasks.sweep",
        "schedule": HOLDFAST_SWEEP_SECONDS,
        "options": {"expires": 4, "ignore_result": True},
    },
    # Workers look for themselves each second, and reconcile: one trigger more, as above.
    "derive": {
        "task": "semantic.tasks.drain",
        "schedule": 10.0,
        "options": {"expires": 8, "ignore_result": True},
    },
    "reconcile-derivatives": {
        "task": "semantic.tasks.reconcile",
        "schedule": 60.0,
        "options": {"expires": 50, "ignore_result": True},
    },
}
if BROKER_URL:
    CELERY_BROKER_URL = BROKER_URL
else:
    CELERY_BROKER_URL = "holdfast://localhost"
    CELERY_BROKER_TRANSPORT_OPTIONS = {"folder": str(HOME.broker), "polling_interval": 0.1}

# --- Logs -------------------------------------------------------------------------------------

LOGGING_CONFIG = "config.logging.configure"
LOGGING = {"level": env.str("LOG_LEVEL", default="INFO")}
