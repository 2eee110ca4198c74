"""What breaks: published rates, files of one's own, and what is refused."""

from __future__ import annotations

import pytest

from meshwright.describe.failures import Cause, failures
from meshwright.errors import InputError

OWN = """
detection_s = 30
restart_s = 120
checkpoint_s = 2
repair_h = 4
[causes]
gpu = { per_accelerator_hour = 1e-5 }
network = { per_accelerator_hour = 2e-6, loses_node = false }
"""


@pytest.fixture
def own(tmp_path):
    def written(text):
        path = tmp_path / "own.toml"
        path.write_text(text)
        return str(path)

    return written


def test_llama_3_is_interrupted_419_times_in_54_days():
    known = failures("llama3")
    assert known.per_accelerator_hour * 16384 * 54 * 24 == pytest.approx(419)
    assert known.per_accelerator_hour == pytest.approx(1.97e-5, rel=2e-3)
    assert known.mean_time_between_s(8192) / 3600 == pytest.approx(6.2, abs=0.05)
    assert known.mean_time_between_s(131072) / 60 == pytest.approx(23, abs=0.3)


def test_a_file_of_ones_own(own):
    known = failures(own(OWN))
    assert [(cause.name, cause.per_accelerator_hour, cause.loses_node) for cause in known.causes] == [
        ("gpu", 1e-5, True),
        ("network", 2e-6, False),
    ]
    assert (known.detection_s, known.restart_s, known.checkpoint_s, known.repair_s) == (30, 120, 2, 14400)


def test_nothing_breaks_where_nothing_can():
    assert failures("none").mean_time_between_s(131072) == float("inf")


@pytest.mark.parametrize("rate", [-1e-6, 1.1, float("nan")])
def test_rates_below_zero_and_above_one_an_hour_are_refused(rate):
    with pytest.raises(InputError, match="affects an accelerator"):
        Cause(name="gpu", per_accelerator_hour=rate, loses_node=True)


@pytest.mark.parametrize(
    "text, what",
    [
        (OWN.replace("1e-5", "-1e-5"), "affects an accelerator -1e-05 times per hour"),
        (OWN.replace("1e-5", "2.0"), "affects an accelerator 2 times per hour"),
        (OWN.replace("restart_s = 120", ""), "restart_s is missing"),
        (OWN.replace("restart_s = 120", "restart_s = -1"), "restart_s is -1"),
        (OWN.replace("{ per_accelerator_hour = 1e-5 }", "3"), "causes.gpu is 3"),
        (
            OWN.replace("2e-6, loses_node = false", '2e-6, loses_node = "no"'),
            "causes.network.loses_node is 'no'",
        ),
        (OWN.replace("loses_node", "looses_node"), "unknown key 'looses_node'"),
        (OWN.replace("per_accelerator_hour = 1e-5", "count = 3"), "the rate of gpu is not given"),
        (OWN.replace("per_accelerator_hour = 1e-5", "loses_node = true"), "the rate of gpu is not given"),
        ("observed = { num_accelerators = 0, days = 1 }" + OWN, "observed.num_accelerators is 0"),
        ("detection_s = [", "not valid TOML"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(own, text, what):
    with pytest.raises(InputError, match=what):
        failures(own(text))


def test_an_unknown_name_and_a_missing_file_are_refused(tmp_path):
    with pytest.raises(InputError, match="no failures named 'lama3'"):
        failures("lama3")
    with pytest.raises(InputError, match="cannot read"):
        failures(str(tmp_path / "none.toml"))
