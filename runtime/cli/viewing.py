"""`show` as a page for people: where the run stands, what it used, its turns, what it waits for, and its answer."""

from typing import Any, Final

from refold.runtime.cli.render import Page, cut, one_line, short, since, thousands

RESULT: Final = 100


def lines(view: dict[str, Any], page: Page) -> list[str]:
    """The page of what `show` gives."""
    made = [f"{page.paint('run ' + view['run_id'], 'bold')}  {page.status(view['status'])}  {page.paint(_place(view), 'dim')}"]
    if view["reason"] or view["detail"]:
        made += page.paragraphs(": ".join(part for part in (view["reason"], view["detail"]) if part), "  ")
    made += ["", *page.paragraphs(view["goal"]), "", *_facts(view, page), *_turns(view, page)]
    for title, body in (("Waits for a human", _pending(view, page)), ("Notes", _notes(view, page)), ("Answer", _answer(view, page))):
        if body:
            made += ["", page.paint(title, "bold"), *body]
    return made


def _facts(view: dict[str, Any], page: Page) -> list[str]:
    usage, budgets = view["usage"], view["budgets"]
    tokens = sum(usage[kind][field] for kind in ("reported", "estimated") for field in ("input_tokens", "output_tokens"))
    estimated = " (estimated)" if any(usage["estimated"].values()) else ""
    rows = [
        ("model", view["model"]),
        ("turns", _of(view["turn"], budgets.get("max_turns"))),
        ("calls", _of(view["tool_calls"], budgets.get("max_tool_calls"))),
        ("tokens", _of(tokens, budgets.get("max_tokens")) + estimated),
        ("cost", f"${usage['cost_usd']}" + (f" of ${budgets['max_cost_usd']}" if budgets.get("max_cost_usd") is not None else "")),
    ]
    if view["driver"] is not None:
        rows.append(("driver", f"{view['driver']['host']}, process {view['driver']['pid']}, since {since(view['driver']['since'])}"))
    return [f"{page.paint(name.ljust(8), 'dim')}{cut(one_line(str(value)), page.room(8))}" for name, value in rows]


def _place(view: dict[str, Any]) -> str:
    return f"position {view['position']} · {view['state']}"


def _of(used: int, allowed: int | None) -> str:
    return thousands(used) if allowed is None else f"{thousands(used)} of {thousands(allowed)}"


def _turns(view: dict[str, Any], page: Page) -> list[str]:
    made: list[str] = []
    turn = 0
    for message in view["messages"][1:]:
        match message["role"]:
            case "user":
                made += ["", page.paint("user", "bold"), *page.paragraphs(message["text"], "  ")]
            case "assistant":
                turn += 1
                made += ["", page.paint("model", "bold")]
                if message["text"].strip() and message["text"] != view["answer"]:
                    made += page.paragraphs(message["text"], "  ")
                elif message["text"].strip():
                    made.append("  (the answer, below)")
                made += [f"  {cut(_call(call), page.room(2))}" for call in message.get("calls", [])]
            case _:
                made.append(_result(message, page))
    return made


def _call(call: dict[str, Any]) -> str:
    return f"{one_line(call['name'], 64)} {short(call['arguments'], RESULT)}".strip()


def _result(message: dict[str, Any], page: Page) -> str:
    good = message["kind"] == "success"
    content = message["content"]
    text = short(content if good else content.get("message", content) if isinstance(content, dict) else content, RESULT)
    mark = page.paint("ok", "green") if good else page.paint(message["kind"], "red")
    return f"    {mark} {cut(text, page.room(6 + len(message['kind'])))}"


def _pending(view: dict[str, Any], page: Page) -> list[str]:
    made: list[str] = []
    for asked in view["pending"]:
        if asked["kind"] == "question":
            made += page.paragraphs(f"{asked['call_id']}  {asked['reason']}", "  ")
        else:
            made += page.paragraphs(f"{asked['call_id']}  {asked['kind']}: {asked['name']} {short(asked['arguments'], 200)}", "  ")
    return made


def _notes(view: dict[str, Any], page: Page) -> list[str]:
    made: list[str] = []
    for note in view["notes"]:
        made += page.paragraphs(note["text"] + (f" [{', '.join(note['source_ids'])}]" if note["source_ids"] else ""), "  ")
    return made


def _answer(view: dict[str, Any], page: Page) -> list[str]:
    if view["answer"] is None:
        return []
    made = page.paragraphs(view["answer"], "  ")
    old = [cited for cited in view["citations"] if cited["superseded_by"]]
    for cited in old:
        by = cited["superseded_by"]
        made += page.paragraphs(f"{cited['doc_id']} is superseded by {', '.join(by) if isinstance(by, list) else by}", "  ")
    return made
