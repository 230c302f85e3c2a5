"""Facts of a registration are few, short and printable."""

import pytest

from grandrounds.errors import MessageError
from grandrounds.protocol.messages import Registration, require_facts


def test_numbers_and_texts_survive_a_checkpoint():
    registration = Registration({"labelled": 1.0}, {"digest": "a" * 64})
    assert registration.to_dict() == {"scalars": {"labelled": 1.0}, "facts": {"digest": "a" * 64}}
    assert Registration(**registration.to_dict()) == registration


@pytest.mark.parametrize("facts", [{}, {"digest": "f" * 128}, {f"fact_{number}": "x" for number in range(8)}])
def test_short_texts_pass(facts):
    require_facts(facts)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({f"fact_{number}": "x" for number in range(9)}, "at most 8 texts by name, got 9"),
        ([("digest", "x")], "at most 8 texts by name, got list"),
        ({"digest": "f" * 129}, "fact 'digest' must be 1 to 128 printable characters, got 129"),
        ({"digest": ""}, "fact 'digest' must be 1 to 128 printable characters, got 0"),
        ({"digest": "a\nb"}, "fact 'digest' must be 1 to 128 printable characters"),
        ({"digest": 3}, "fact 'digest' must be a text, got int"),
        ({"a b": "x"}, "a fact must have a plain name, got 'a b'"),
        ({3: "x"}, "a fact must have a plain name, got '3'"),
    ],
)
def test_anything_else_is_refused(facts, message):
    with pytest.raises(MessageError, match=message):
        require_facts(facts)
