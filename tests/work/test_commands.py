"""The commands an operator runs for jobs: their words, their shapes, their exit codes."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from tests import factories as make
from work import bounds
from work.models import Computer

pytestmark = pytest.mark.django_db(transaction=True)


def output_of(*arguments: str) -> str:
    out = StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def refusal(*arguments: str) -> str:
    with pytest.raises(CommandError) as refused:
        output_of(*arguments)
    assert refused.value.returncode == 2
    return str(refused.value)


@pytest.fixture
def ada() -> str:
    return make.UserFactory.create(username="ada").username


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path.resolve())


def test_a_computer_is_added_listed_changed_and_revoked(ada: str, root: str) -> None:
    adding = ("add_computer", ada, "laptop", "--root", root, "--check", "test=make 'a b'")
    assert output_of(*adding) == "Added: laptop: curated, 1 root, 1 check.\n"
    assert output_of(*adding) == "It was there already: laptop: curated, 1 root, 1 check.\n"
    assert output_of("computers", ada) == (
        "ada  laptop  curated  here\n"
        f"    root   {root}\n"
        "    check  test: make 'a b'\n"
    )  # fmt: skip

    changing = ("change_computer", ada, "laptop", "--tier", "probe", "--no-checks")
    assert output_of(*changing) == "Changed: laptop: probe, 1 root, 0 checks.\n"
    assert output_of(*changing) == "It was so already: laptop: probe, 1 root, 0 checks.\n"

    assert output_of("revoke_computer", ada, "laptop") == "Revoked: laptop.\n"
    assert output_of("computers", ada) == "There is none.\n"
    assert output_of("computers", "--revoked").startswith("ada  laptop  probe  here  revoked\n")


def test_a_computer_of_another_host_is_listed_as_elsewhere(ada: str, root: str) -> None:
    output_of("add_computer", ada, "laptop", "--root", root)
    there = Computer.objects.get()
    there.pk, there.name, there.host_id = None, "server", "another"
    there.save()
    assert "ada  server  curated  elsewhere\n" in output_of("computers")


def test_a_refusal_says_what_is_wrong_with_which_value_and_its_code(
    ada: str, root: str
) -> None:
    adding = ("add_computer", ada, "laptop", "--root", root)
    assert refusal("add_computer", ada, "laptop", "--root", root, "--root", "here") == (
        "--root here: A root is the absolute path of a directory that is here, without links "
        "in it. (invalid_root)"
    )
    assert refusal(*adding, "--check", "test").startswith("--check test: ")
    assert "(invalid_check)" in refusal(*adding, "--check", "=true")
    assert "No closing quotation" in refusal(*adding, "--check", "test='")
    assert "(invalid_request)" in refusal("add_computer", ada, " ", "--root", root)
    assert not Computer.objects.exists()


def test_a_computer_that_is_not_there_is_not_changed(ada: str, root: str) -> None:
    missing = "There is nothing here. (not_found)"
    assert refusal("revoke_computer", ada, "laptop") == missing
    assert refusal("change_computer", ada, "laptop", "--tier", "shell") == missing
    output_of("add_computer", ada, "laptop", "--root", root)
    make.UserFactory.create(username="eve")
    assert refusal("revoke_computer", "eve", "laptop") == missing


def test_a_change_says_what_is_to_change(ada: str, root: str) -> None:
    output_of("add_computer", ada, "laptop", "--root", root)
    assert refusal("change_computer", ada, "laptop") == "say what is to change"
    both = ("--check", "test=true", "--no-checks")
    assert "one of them" in refusal("change_computer", ada, "laptop", *both)


def test_the_ninth_computer_and_a_name_that_is_taken_are_refused(ada: str, root: str) -> None:
    for number in range(bounds.COMPUTERS_PER_OWNER):
        output_of("add_computer", ada, f"computer-{number}", "--root", root)
    assert "(computer_limit_reached)" in refusal("add_computer", ada, "x", "--root", root)
    taken = ("add_computer", ada, "computer-0", "--root", root, "--tier", "shell")
    assert "(computer_name_taken)" in refusal(*taken)


@pytest.mark.parametrize(
    "arguments",
    [
        ("add_computer", "nobody", "laptop", "--root", "/"),
        ("change_computer", "nobody", "laptop", "--tier", "probe"),
        ("revoke_computer", "nobody", "laptop"),
        ("computers", "nobody"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_nobody_has_no_computers(arguments: tuple[str, ...]) -> None:
    assert refusal(*arguments) == "there is no such user"
