from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from config.embedded.paths import Home
from config.embedded.stack import cluster
from tests.support.installation import Installation, alive, descendants
from tests.support.waiting import wait_until

# Two on an idle machine. One that nobody ended would stay for ever.
GONE_SECONDS = 15.0


@pytest.fixture
def make_installation(tmp_path: Path) -> Iterator[Callable[..., Installation]]:
    made: list[Installation] = []

    def make(**variables: str) -> Installation:
        defaults = {
            "LLM_API": "responses",
            "LLM_BASE_URL": "http://127.0.0.1:9/v1",
            "LLM_MODEL": "scripted",
        }
        installation = Installation(tmp_path / f"home{len(made)}", variables or defaults)
        made.append(installation)
        return installation

    yield make
    for installation in made:
        installation.remove()


@pytest.fixture
def installation(make_installation: Callable[..., Installation]) -> Installation:
    return make_installation()


def test_up_starts_where_a_proxy_is_set_and_the_page_has_another_name(
    make_installation: Callable[..., Installation],
) -> None:
    proxy = dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY"), "http://127.0.0.1:9")
    installation = make_installation(
        LLM_API="responses",
        LLM_BASE_URL="http://127.0.0.1:9/v1",
        LLM_MODEL="scripted",
        ALLOWED_HOSTS="page.example",
        **proxy,
    )
    installation.start()
    assert installation.get("healthz") == 200


@pytest.mark.parametrize("port", ["70000", "-1"])
def test_up_says_which_ports_there_are(tmp_path: Path, port: str) -> None:
    ended = subprocess.run(
        [sys.executable, "manage.py", "up", "--port", port],
        env={**os.environ, "HOLDFAST_HOME": str(tmp_path), "DATABASE_URL": "", "LLM_API": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert "0 to 65535" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_up_prints_where_everything_answers_and_ctrl_c_leaves_no_process(
    installation: Installation,
) -> None:
    address = installation.start()
    assert sorted(address) == ["database_url", "password", "url", "username"]
    assert installation.get("healthz") == 200
    assert installation.get("admin/login/") == 200
    running = descendants(installation.supervisor.pid)  # type: ignore[union-attr]
    assert {"postgres", "worker", "web"} <= set(installation.pids())

    assert installation.interrupt() == 0
    assert alive(running) == []


def test_a_second_start_finds_the_data_and_the_same_login(installation: Installation) -> None:
    first = installation.start()
    with psycopg.connect(first["database_url"], autocommit=True) as connection:
        connection.execute("CREATE TABLE kept (n int)")
        connection.execute("INSERT INTO kept VALUES (42)")
    installation.interrupt()

    second = installation.start()
    with psycopg.connect(second["database_url"]) as connection:
        assert connection.execute("SELECT n FROM kept").fetchone() == (42,)
    assert second["password"] == first["password"]
    home = installation.home
    for path in (home / "secrets").iterdir():
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_moved_home_keeps_its_data_and_a_deleted_one_starts_afresh(
    installation: Installation,
) -> None:
    first = installation.start()
    installation.interrupt()
    moved = installation.home.with_name("moved")
    installation.home.rename(moved)
    installation.home = moved
    assert installation.start()["password"] == first["password"]
    installation.interrupt()

    old = cluster(Home(moved))
    shutil.rmtree(moved)
    try:
        assert installation.start()["password"] not in {None, first["password"]}
    finally:
        shutil.rmtree(old, ignore_errors=True)


def test_killing_the_supervisor_leaves_nothing_after_seconds(
    installation: Installation,
) -> None:
    address = installation.start()
    with psycopg.connect(address["database_url"]) as idle_in_transaction:
        idle_in_transaction.execute("SELECT 1")
        running = descendants(installation.supervisor.pid)  # type: ignore[union-attr]
        installation.supervisor.kill()  # type: ignore[union-attr]
        wait_until(lambda: not alive(running), "every process is gone", seconds=GONE_SECONDS)
        idle_in_transaction.close()


def test_after_the_supervisor_was_killed_the_next_start_works(
    installation: Installation,
) -> None:
    installation.start()
    installation.supervisor.kill()  # type: ignore[union-attr]
    installation.supervisor.wait()  # type: ignore[union-attr]
    installation.start()
    assert installation.get("healthz") == 200


@pytest.mark.parametrize("name", ["web", "worker"])
def test_a_killed_child_is_started_again(installation: Installation, name: str) -> None:
    installation.start()
    before = installation.pids()
    os.kill(before[name], signal.SIGKILL)
    wait_until(
        lambda: installation.pids().get(name, before[name]) != before[name],
        f"another {name} process",
    )
    wait_until(lambda: installation.get("healthz") == 200, "the page answers")
    after = installation.pids()
    assert {k: v for k, v in after.items() if k in {"postgres", "web", "worker"} - {name}} == {
        k: v for k, v in before.items() if k in {"postgres", "web", "worker"} - {name}
    }


def test_a_killed_postgresql_comes_back_at_the_same_address_though_a_backend_is_busy(
    installation: Installation,
) -> None:
    address = installation.start()
    busy = psycopg.connect(address["database_url"], autocommit=True)
    spinning = "DO $$ BEGIN LOOP NULL; END LOOP; END $$"
    busy.pgconn.send_query(spinning.encode())
    postmaster = installation.pids()["postgres"]
    os.kill(postmaster, signal.SIGKILL)
    busy.close()

    def answers() -> bool:
        try:
            psycopg.connect(address["database_url"], connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    wait_until(lambda: not alive([postmaster]), "the killed postmaster is gone")
    wait_until(answers, "the database answers again")
    wait_until(lambda: installation.get("healthz") == 200, "the page has its database again")


def test_a_second_supervisor_on_the_same_home_is_refused_and_harms_nothing(
    installation: Installation,
) -> None:
    installation.start()
    intruder = Installation(installation.home, installation.variables)
    intruder.launch()
    assert intruder.supervisor is not None
    assert intruder.supervisor.wait(60) == 1
    assert "already running" in intruder.errors()
    intruder.close()
    assert installation.get("healthz") == 200


def test_a_port_in_use_is_named_and_nothing_is_left(installation: Installation) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        installation.launch("--port", str(port))
        assert installation.supervisor is not None
        assert installation.supervisor.wait(60) == 1
    assert f"port {port} is in use" in installation.errors()


def test_an_unreachable_database_of_yours_is_a_sentence_and_not_a_traceback(
    make_installation: Callable[..., Installation],
) -> None:
    installation = make_installation(
        DATABASE_URL="postgresql://nobody:secret-word@127.0.0.1:1/none",
        SECRET_KEY="k" * 50,
        LLM_API="responses",
        LLM_BASE_URL="http://127.0.0.1:9/v1",
        LLM_MODEL="scripted",
    )
    installation.launch()
    assert installation.supervisor is not None
    assert installation.supervisor.wait(60) == 1
    assert "database" in installation.errors()
    assert "Traceback" not in installation.errors()
    assert "secret-word" not in installation.errors()


def test_ctrl_c_while_starting_leaves_no_process(installation: Installation) -> None:
    installation.launch()
    assert installation.supervisor is not None
    pid = installation.supervisor.pid
    wait_until(lambda: descendants(pid), "the first child was started")
    running = descendants(pid)
    installation.interrupt()
    assert alive(running) == []


def test_with_the_local_model_the_worker_and_the_web_are_told_its_address(
    make_installation: Callable[..., Installation],
) -> None:
    installation = make_installation(LLM_API="local")
    installation.start()
    pids = installation.pids()
    assert "model" in pids
    for name in ("web", "worker"):
        environment = Path(f"/proc/{pids[name]}/environ").read_bytes().split(b"\0")
        assert b"LLM_API=local" in environment
        assert any(item.startswith(b"LLM_BASE_URL=http://127.0.0.1:") for item in environment)
    os.kill(pids["model"], signal.SIGKILL)
    wait_until(
        lambda: installation.pids().get("model", pids["model"]) != pids["model"],
        "another model server",
    )


def test_a_question_is_answered_by_the_local_model_through_the_api(
    make_installation: Callable[..., Installation],
) -> None:
    installation = make_installation(LLM_API="local")
    address = installation.start()
    made = subprocess.run(
        [sys.executable, "manage.py", "create_token", address["username"]],
        env={**os.environ, "HOLDFAST_HOME": str(installation.home), "DATABASE_URL": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    headers = {"Authorization": f"Bearer {made.stdout.split()[-1]}"}
    with httpx.Client(base_url=f"{address['url']}api/v1/", headers=headers) as client:
        conversation = client.post("conversations", json={}).json()
        asked = client.post(
            f"conversations/{conversation['id']}/turns", json={"text": "Say hello."}
        )
        assert asked.status_code == httpx.codes.ACCEPTED
        turn = asked.json()

        def ended() -> bool:
            turn.update(client.get(f"turns/{turn['id']}").json())
            return turn["state"] not in {"queued", "running"}

        wait_until(ended, "the turn has ended", seconds=60)
    assert (turn["state"], turn["error_code"]) == ("completed", None)
    assert turn["assistant"]["text"]
    assert turn["usage"]["output_tokens"] > 0
