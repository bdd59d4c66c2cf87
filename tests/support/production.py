"""The production profile: PostgreSQL 16 over TCP, RabbitMQ and Redis, started for one command.

    python -m tests.support.production pytest --production

Everything runs on free ports in folders of its own, beside whatever the machine runs already,
and ends with this process. Several test processes share it: each has a database of its own, and
queues and channels are named for their database.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import redis
from kombu import Connection

from config.embedded.children import Account, start
from config.embedded.paths import ROOT_STATE
from config.embedded.postgres import Postgres, free_port
from tests.support.waiting import wait_until

SERVERS = ("redis-server", "/usr/lib/rabbitmq/bin/rabbitmq-server")


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """Run PostgreSQL 16 with its default durability; yield its address."""
    server = Postgres(
        folder / "postgres",
        password=secrets.token_urlsafe(16),
        log=folder / "postgres.log",
        major=16,
    )
    server.start()
    try:
        server.create_database("holdfast")
        yield server.url("holdfast")
    finally:
        server.stop()


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """Run Redis without persistence; yield its address."""
    port = free_port()
    process = start(
        [
            "redis-server",
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ],
        log=folder / "redis.log",
    )
    url = f"redis://127.0.0.1:{port}/0"

    def answers() -> bool:
        with redis.Redis.from_url(url) as client:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False

    try:
        wait_until(answers, "Redis answers")
        yield url
    finally:
        process.terminate()
        process.wait(15)


@contextmanager
def rabbitmq(folder: Path) -> Iterator[str]:
    """Run a RabbitMQ node of our own, with its own port mapper; yield its address."""
    home = folder / "rabbitmq"
    home.mkdir()
    account = _rabbitmq_account()
    if account is not None:
        os.chown(home, account.uid, account.gid)
    port, mapper, distribution = free_port(), free_port(), free_port()
    process = start(
        [SERVERS[1]],
        log=folder / "rabbitmq.log",
        account=account,
        cwd=home,
        environment={
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "ERL_EPMD_PORT": str(mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"holdfast{os.getpid()}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": str(home / "data"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_PID_FILE": str(home / "pid"),
            "RABBITMQ_CONF_ENV_FILE": str(home / "no-env.conf"),
            "RABBITMQ_CONFIG_FILE": str(home / "no-config"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(home / "no-advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
        },
    )
    url = f"amqp://guest:guest@127.0.0.1:{port}//"

    def answers() -> bool:
        with Connection(url, connect_timeout=2) as connection:
            try:
                connection.connect()
            except OSError:
                return False
        return True

    try:
        wait_until(answers, "RabbitMQ answers", seconds=90)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        subprocess.run(
            ["epmd", "-port", str(mapper), "-kill"], capture_output=True, check=False
        )


def _rabbitmq_account() -> Account | None:
    if os.geteuid() != 0:
        return None
    entry = pwd.getpwnam("rabbitmq")
    return Account(entry.pw_uid, entry.pw_gid)


def main(command: list[str]) -> int:
    """Run `command` on the production profile; return its exit status."""
    missing = [server for server in SERVERS if shutil.which(server) is None]
    if missing:
        print(f"not installed: {', '.join(missing)} (redis-server, rabbitmq-server)")  # noqa: T201
        return 2
    with ExitStack() as stack:
        parent = ROOT_STATE if os.geteuid() == 0 else Path(tempfile.gettempdir())
        parent.mkdir(exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"test-{os.getpid()}-", dir=parent))
        folder.chmod(0o755)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        environment = {
            **os.environ,
            "DATABASE_URL": stack.enter_context(postgres(folder)),
            "CHANNEL_URL": stack.enter_context(redis_server(folder)),
            "BROKER_URL": stack.enter_context(rabbitmq(folder)),
        }
        return subprocess.run(
            [sys.executable, "-m", *command], env=environment, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
