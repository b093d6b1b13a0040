"""What a response or a tool uses up: tokens as reported or estimated, money by the recorded prices, measured time.

Apart from the fold, because these sums are what invoices and limits are held against. While a response streams, its latest report stands in the sums and is
replaced by the next; when it ends, what its end says takes that place.
"""

from refold.events import facts as f, money
from refold.projections.context import past_size
from refold.projections.messages import tokens_of
from refold.projections.run import Measured, Run, Spent, Streaming, Tokens, replace


def settled(run: Run, usage: f.Usage | None, unreported: f.Usage | None, elapsed_us: int, size: int) -> Run:
    """A response has ended: what was reported of it, and apart from that what is estimated; all of it where nothing was said, by its `size` in bytes."""
    spent = active(_streaming(run).before, elapsed_us)
    if run.rules.settles and usage is not None and size and not (usage.input_tokens or usage.output_tokens or usage.cost_usd is not None):
        usage = None  # nothing is said for nothing: a provider that reports so did not count
    if usage is None and unreported is None:
        unreported = f.Usage(input_tokens=_asked_tokens(run), output_tokens=tokens_of(size), estimated=True)
        if not run.rules.settles:  # an estimate had no price then
            return replace(run, spent=replace(spent, estimated=_plus(spent.estimated, unreported)))
    after = replace(run, spent=_with(run, _with(run, spent, usage), unreported), streaming=None)
    if not run.rules.reserves or usage is None or usage.estimated or usage.input_tokens < 1:
        return after
    return replace(after, measured=Measured(size=past_size(run), tokens=usage.input_tokens))


def used(run: Run, usage: f.Usage | None, unreported: f.Usage | None, elapsed_us: int) -> Run:
    """What a request beside those of the turns took: what was reported of it, and apart from that what is estimated."""
    return replace(run, spent=_with(run, _with(run, active(run.spent, elapsed_us), usage), unreported))


def reported(run: Run, usage: f.Usage) -> Run:
    """A report on the way: totals of the open response, which take the place of those before."""
    streaming = _streaming(run)
    return replace(run, spent=_with(run, streaming.before, usage), streaming=replace(streaming, usage=usage, since=0))


def checkpointed(run: Run, fact: f.StreamCheckpointed) -> Run:
    """More of the open response was written down."""
    size = said_in(fact)
    streaming = _streaming(run)
    after = replace(run, streaming=replace(streaming, size=streaming.size + size, since=streaming.since + size))
    return reported(after, fact.usage) if fact.usage is not None else after


def lost(run: Run) -> Run:
    """The process of the open request is gone: what it is known to have used, and that is an estimate."""
    streaming = _streaming(run)
    known = streaming.usage or f.Usage()
    estimate = replace(
        known,
        input_tokens=max(known.input_tokens, _asked_tokens(run)),
        output_tokens=max(known.written + tokens_of(streaming.since), tokens_of(streaming.size)),
        reasoning_beside=False,
        estimated=True,
    )
    return replace(run, spent=_with(run, streaming.before, estimate), streaming=None)


def said_in(fact: f.StreamCheckpointed | f.ModelFailed | f.ModelOutput) -> int:
    """Bytes of everything that a model wrote."""
    texts = [fact.text, fact.reasoning, *(call.arguments_text for call in fact.calls)]
    if isinstance(fact, f.ModelOutput):
        texts.append(fact.refusal)
    return sum(len(text.encode("utf-8", "replace")) for text in texts)


def priced(usage: f.Usage, price: f.Price | None) -> str:
    """What the recorded prices make of it; each class of tokens once."""
    if price is None:
        return "0"
    plain = max(0, usage.input_tokens - usage.cached_input_tokens - usage.cache_write_tokens)  # some report cache writes beside their input
    total = money.per_million(plain, price.input)
    total = money.add(total, money.per_million(usage.cached_input_tokens, price.cached_input or price.input))
    total = money.add(total, money.per_million(usage.cache_write_tokens, price.cache_write or price.input))
    return money.add(total, money.per_million(usage.written, price.output))


def active(spent: Spent, elapsed_us: int) -> Spent:
    return replace(spent, active_us=spent.active_us + elapsed_us) if elapsed_us else spent


def _streaming(run: Run) -> Streaming:
    """What is known of the open response."""
    return run.streaming or Streaming(before=run.spent)


def _asked_tokens(run: Run) -> int:
    return run.request.estimated_input_tokens if run.request is not None else 0


def _with(run: Run, spent: Spent, usage: f.Usage | None) -> Spent:
    if usage is None:
        return spent
    cost = usage.cost_usd if usage.cost_usd is not None else priced(usage, run.begun.price)
    cost = money.add(spent.cost_usd, cost) if cost != "0" else spent.cost_usd
    if usage.estimated:
        return replace(spent, estimated=_plus(spent.estimated, usage), cost_usd=cost)
    return replace(spent, reported=_plus(spent.reported, usage), cost_usd=cost)


def _plus(tokens: Tokens, usage: f.Usage) -> Tokens:
    return Tokens(
        input_tokens=tokens.input_tokens + usage.input_tokens,
        cached_input_tokens=tokens.cached_input_tokens + usage.cached_input_tokens,
        output_tokens=tokens.output_tokens + usage.written,
    )
