"""Variables of a launcher that cannot be, with which processes would wait for each other."""

import pytest

from bighmm.base import meeting


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RANK": "7"}, "RANK must be a number from 0 to 1, not '7'"),
        ({"RANK": "2"}, "RANK must be a number from 0 to 1, not '2'"),
        ({"RANK": "-1"}, "RANK must be a number"),
        ({"RANK": "x"}, "RANK must be a number"),
        ({"RANK": "9" * 5000}, "RANK must be a number"),
        (
            {"RANK": "0", "MASTER_PORT": "x"},
            "MASTER_PORT must be a number from 0 to 65535",
        ),
        ({"RANK": "0", "MASTER_PORT": "65536"}, "MASTER_PORT must be a number"),
    ],
)
def test_refused_at_once(monkeypatch, variables, said):
    for name, value in {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", **variables}.items():
        monkeypatch.setenv(name, value)

    def wait(*given, **named):
        pytest.fail("it waits for the others")

    monkeypatch.setattr(meeting.distributed, "rendezvous", wait)
    with pytest.raises(ValueError, match=said):
        meeting.meet()
