"""The expressions of GitHub Actions as the tests evaluate them, and that they refuse what they do not know."""

from __future__ import annotations

from typing import Any

import pytest

from tests.github_actions.expressions import NotEmulated, filled, holds, value_of

CONTEXTS = {
    "github": {"event_name": "push", "sha": "1234"},
    "needs": {"plan": {"result": "success", "outputs": {"jobs": '{"include": [{"name": "a"}]}'}}},
    "matrix": {"name": "a", "shard": {"include": [1]}},
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("github.event_name == 'PUSH'", True),
        ("github.event_name != 'push' || needs.plan.result == 'success'", True),
        ("github.event_name == 'pull_request' && 'newest' || 'full'", "full"),
        ("github.event_name == 'push' && 'newest' || 'full'", "newest"),
        ("!(true && false) && 'it''s'", "it's"),
        ("fromJSON(needs.plan.outputs.jobs)", {"include": [{"name": "a"}]}),
        ("github.event_name == 'push' || github.event.number", True),
        ("contains(github.event_name, 'US')", True),
        ("contains(null, 'US')", False),
    ],
)
def test_values(text: str, value: Any) -> None:
    assert value_of(text, CONTEXTS) == value


def test_texts_with_expressions() -> None:
    assert filled("wheels-${{ matrix.name }}-${{ github.sha }}", CONTEXTS) == "wheels-a-1234"
    assert filled("${{ toJSON(matrix.shard) }}", CONTEXTS) == '{\n  "include": [\n    1\n  ]\n}'


@pytest.mark.parametrize(
    "text", ["secrets.TOKEN", "hashFiles('**')", "github.actor", "matrix['name']", "1 < 2", "github.sha == 1", "a b"]
)
def test_what_is_not_emulated_is_an_error(text: str) -> None:
    with pytest.raises(NotEmulated):
        value_of(text, CONTEXTS)


@pytest.mark.parametrize(
    ("condition", "success", "expected"),
    [
        ("github.event_name == 'push'", True, True),
        ("github.event_name == 'push'", False, False),
        ("${{ !cancelled() }}", False, True),
        ("${{ !cancelled() && needs.plan.result == 'failure' }}", True, False),
        ("failure()", True, False),
    ],
)
def test_conditions(condition: str, success: bool, expected: bool) -> None:
    status = {"success": lambda: success, "failure": lambda: not success, "cancelled": lambda: False}
    assert holds(condition, CONTEXTS, status) is expected
