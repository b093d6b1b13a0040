"""What a model costs: exact decimals for a million tokens, from the list that is installed; nothing where it is not known."""

from decimal import Decimal

import pytest

from refold.runtime.prices import price_of

AUGUST_2025_US = 1_754_000_000_000_000


def test_a_price_is_exact_and_plain():
    # given a model whose price has not changed for long
    price = price_of("openai:gpt-4o-mini", at_us=AUGUST_2025_US)
    # then it is written as money is written here
    assert price is not None
    assert (price.input, price.output, price.cached_input, price.cache_write) == ("0.15", "0.6", "0.075", None)


def test_what_is_read_and_written_to_a_cache_has_its_own_price():
    price = price_of("anthropic:claude-3-5-haiku-20241022", at_us=AUGUST_2025_US)
    assert price is not None
    assert price.cached_input is not None
    assert price.cache_write is not None
    assert Decimal(price.cached_input) < Decimal(price.input) < Decimal(price.cache_write)


def test_of_a_price_in_tiers_it_is_the_base():
    # given a model that costs twice as much beyond 200,000 tokens
    price = price_of("openai-chat:gemini-2.5-pro", "https://generativelanguage.googleapis.com/v1beta/openai", AUGUST_2025_US)
    # then
    assert price is not None
    assert (price.input, price.output) == ("1.25", "10")


def test_the_address_says_whose_price_it_is():
    assert price_of("openai-chat:gpt-4o-mini", "https://api.mistral.ai/v1") is None
    assert price_of("openai-chat:deepseek-chat", "https://api.deepseek.com") == price_of("deepseek:deepseek-chat")


def test_a_gateway_costs_what_the_provider_does():
    assert price_of("openai:gpt-4o-mini", "http://127.0.0.1:4000/v1") == price_of("openai:gpt-4o-mini")


def test_a_price_is_that_of_its_day():
    # given a model that was made cheaper in June 2025
    before, after = price_of("openai:o3", at_us=1_746_000_000_000_000), price_of("openai:o3", at_us=AUGUST_2025_US)
    # then
    assert before is not None
    assert after is not None
    assert Decimal(after.input) < Decimal(before.input)


@pytest.mark.parametrize("spec", ["openai:no-such-model", "openai-chat:llama3", "offline", "script:x.json", "openai:", "", "bogus:gpt-4o"])
def test_a_price_that_is_not_known_is_none(spec: str):
    assert price_of(spec) is None


def test_without_the_list_no_price_is_known(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("refold.runtime.prices.find_spec", lambda _: None)
    assert price_of("openai:gpt-4o-mini") is None
