"""What a model costs: from SPEC and address to the price for a million tokens, out of the price list of the package `genai-prices`.

Apart from the adapters, because the price is looked up once, when a run begins, and stands in its first record from then on.
"""

from datetime import UTC, datetime
from decimal import Decimal
from importlib.util import find_spec
from typing import Any, Final

from refold.events.money import plain
from refold.events.parts import Price

PROVIDERS: Final = {"openai": "openai", "openai-chat": "openai", "deepseek": "deepseek", "anthropic": "anthropic"}
"""Whose list holds where the address says nothing: a gateway passes prices on, and a model of one's own is in no list."""


def price_of(spec: str, base_url: str = "", at_us: int | None = None) -> Price | None:
    """The price of `PROVIDER:NAME` at that time (microseconds since the epoch; now where none is given), in USD as exact decimal strings; None where it is not known.

    The list is the one that was installed: nothing is fetched. Of a price in tiers it is the base tier, so a prompt beyond it costs more than this says;
    a price that depends on the time of day is that of the given time. Batch, priority and other special rates are not looked at.
    """
    kind, _, name = spec.partition(":")
    if kind not in PROVIDERS or not name or find_spec("genai_prices") is None:
        return None
    moment = datetime.now(UTC) if at_us is None else datetime.fromtimestamp(at_us / 1_000_000, UTC)
    found = _listed(name, _provider(kind, base_url), moment)
    read, written = (_base(found.input_mtok), _base(found.output_mtok)) if found is not None else (None, None)
    if found is None or read is None or written is None:
        return None
    return Price(input=read, output=written, cached_input=_base(found.cache_read_mtok), cache_write=_base(found.cache_write_mtok))


def _provider(kind: str, base_url: str) -> str:
    """Whose list it is: that of the address where it is known, else that of the kind of model."""
    from genai_prices.data_snapshot import get_snapshot

    try:
        return get_snapshot().find_provider(None, None, base_url).id if base_url else PROVIDERS[kind]
    except LookupError:
        return PROVIDERS[kind]


def _listed(name: str, provider: str, moment: datetime) -> Any:  # the package's ModelPrice, or None
    import genai_prices  # half a second: only runs with a provider pay it

    try:
        return genai_prices.calc_price(genai_prices.Usage(), name, provider_id=provider, genai_request_timestamp=moment).model_price
    except LookupError:
        return None


def _base(price: Any) -> str | None:
    amount = getattr(price, "base", price)
    return plain(amount) if isinstance(amount, Decimal) else None
