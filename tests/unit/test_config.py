from __future__ import annotations

import dataclasses

import pytest

from radiximp.config import ConfigError, PolicyConfig


def test_defaults_are_within_their_own_ranges():
    assert PolicyConfig.from_mapping(None) == PolicyConfig.from_mapping({}) == PolicyConfig()


def test_a_key_changes_its_setting_and_no_other():
    config = PolicyConfig.from_mapping({"half_life_s": 120})
    assert config == dataclasses.replace(PolicyConfig(), half_life_s=120.0)


@pytest.mark.parametrize(
    "mapping, message",
    [
        ({"halflife": 3}, "unknown key 'halflife'; expected one of score, law_half_life_s, prior_spans"),
        ({"half_life_s": "60"}, "half_life_s: expected a number from 0 to 1e+09, got '60'"),
        ({"half_life_s": -1}, "half_life_s: -1 is out of range; expected a number from 0 to 1e+09"),
        ({"half_life_s": float("nan")}, "half_life_s: expected a number from 0 to 1e+09, got nan"),
        ({"half_life_s": True}, "half_life_s: expected a number from 0 to 1e+09, got True"),
        ({"half_life_s": None}, "half_life_s: expected a number from 0 to 1e+09, got None"),
        ({"window_queries": 2.5}, "window_queries: expected an integer from 1 to 64, got 2.5"),
        ({"window_queries": 65}, "window_queries: 65 is out of range; expected an integer from 1 to 64"),
        ({"record_path": 3}, "record_path: expected a text, got 3"),
        ({"score": "arc"}, "score: expected one of reuse, lrfu, got 'arc'"),
        ({"max_uses": 10**400}, "max_uses: expected a number from 1 to 1e+09, got 1000"),
    ],
)
def test_a_mistake_names_key_value_and_range(mapping, message):
    with pytest.raises(ConfigError) as error:
        PolicyConfig.from_mapping(mapping)
    assert str(error.value).startswith(message)


def test_the_configuration_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PolicyConfig().half_life_s = 3.0
