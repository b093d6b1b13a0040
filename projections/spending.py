"""What a response or a tool uses up: tokens as reported or estimated, money by the recorded prices, measured time.

Apart from the fold, because these sums are what invoices and limits are held against.
"""

from refold.events import facts as f, money
from refold.projections.messages import tokens_of
from refold.projections.run import Run, Spent, Tokens, replace


def booked(run: Run, usage: f.Usage | None, elapsed_us: int, said: str) -> Run:
    """Tokens, money and time of one response: as the provider reported them, else estimated and apart."""
    spent = active(run.spent, elapsed_us)
    if usage is None:
        read = run.request.estimated_input_tokens if run.request is not None else 0
        estimated = _plus(spent.estimated, f.Usage(input_tokens=read, output_tokens=tokens_of(len(said.encode("utf-8", "replace")))))
        return replace(run, spent=replace(spent, estimated=estimated))
    cost = usage.cost_usd if usage.cost_usd is not None else _price(run, usage)
    cost = money.add(spent.cost_usd, cost) if cost != "0" else spent.cost_usd
    if usage.estimated:
        return replace(run, spent=replace(spent, estimated=_plus(spent.estimated, usage), cost_usd=cost))
    return replace(run, spent=replace(spent, reported=_plus(spent.reported, usage), cost_usd=cost))


def _price(run: Run, usage: f.Usage) -> str:
    """What the recorded prices make of it; each class of tokens once."""
    price = run.setup.price if run.setup is not None else None
    if price is None:
        return "0"
    plain = usage.input_tokens - usage.cached_input_tokens - usage.cache_write_tokens
    total = money.per_million(plain, price.input)
    total = money.add(total, money.per_million(usage.cached_input_tokens, price.cached_input or price.input))
    total = money.add(total, money.per_million(usage.cache_write_tokens, price.cache_write or price.input))
    return money.add(total, money.per_million(usage.output_tokens, price.output))


def _plus(tokens: Tokens, usage: f.Usage) -> Tokens:
    return Tokens(
        input_tokens=tokens.input_tokens + usage.input_tokens,
        cached_input_tokens=tokens.cached_input_tokens + usage.cached_input_tokens,
        output_tokens=tokens.output_tokens + usage.output_tokens,
    )


def active(spent: Spent, elapsed_us: int) -> Spent:
    return replace(spent, active_us=spent.active_us + elapsed_us) if elapsed_us else spent
