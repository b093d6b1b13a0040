"""`show` as a page for people: where the run stands, what it used, its turns, what it waits for, and its answer."""

from collections.abc import Mapping
from typing import Any, Final

from refold.runtime.cli.render import Page, compact, counted, cut, one_line, short, since, thousands
from refold.runtime.ports import Request

RESULT: Final = 100


def lines(view: dict[str, Any], page: Page, to_type: Mapping[str, list[str]]) -> list[str]:
    """The page of what `show` gives, with the lines that settle what it waits for, by call."""
    made = [f"{page.paint('run ' + view['run_id'], 'bold')}  {page.status(view['status'])}", f"  {page.paint(cut(_place(view), page.room(2)), 'dim')}"]
    if view["reason"] or view["detail"]:
        made += page.paragraphs(": ".join(part for part in (view["reason"], view["detail"]) if part), "  ")
    made += ["", *page.paragraphs(view["goal"]), "", *_facts(view, page), *_turns(view, page), *_this_turn(view, page)]
    for title, body in (("Waits for a human", _pending(view, page, to_type)), ("Notes", _notes(view, page)), ("Answer", _answer(view, page))):
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
    if view["forked_from"] is not None:
        rows.insert(0, ("fork of", f"{view['forked_from']} at {view['forked_at']}"))
    elif view["parent"] is not None:
        rows.insert(0, ("from", view["parent"]))
    if view["recorded_in"] != view["run_id"]:
        rows.insert(0, ("record", f"of run {view['recorded_in']}, from which run {view['run_id']} went another way later"))
    if upto := [each["upto"] for each in view["compactions"] if not each["error"]]:
        rows.append(("context", f"what was said up to position {upto[-1]} is shown as a summary"))
    if view["seals"]:
        last = view["seals"][-1]
        rows.append(("sealed", f"at position {last['position']} with key {last['key']}{_behind(view['position'] - last['position'])}"))
    if view["driver"] is not None:
        rows.append(("driver", f"{view['driver']['host']}, process {view['driver']['pid']}, attached {since(view['driver']['since'])}"))
    made = [f"{page.paint(name.ljust(8), 'dim')}{cut(one_line(str(value)), page.room(8))}" for name, value in rows]
    return [*made, f"{page.paint('head'.ljust(8), 'dim')}{view['head']}"]  # never cut: it is there to be copied


def _behind(records: int) -> str:
    return f"; {counted(records, 'record')} came after it" if records else ""


def _place(view: dict[str, Any]) -> str:
    return f"position {view['position']} · {view['record']} · {view['state']}"


def _of(used: int, allowed: int | None) -> str:
    return thousands(used) if allowed is None else f"{thousands(used)} of {thousands(allowed)}"


def _turns(view: dict[str, Any], page: Page) -> list[str]:
    made: list[str] = []
    said = view["messages"]
    if said and said[0]["role"] == "user" and said[0]["text"] == view["goal"]:
        said = said[1:]  # it stands above; a run that goes on from another begins with what was said there
    for place, message in enumerate(said):
        match message["role"]:
            case "user":
                made += ["", page.paint("user", "bold"), *page.paragraphs(message["text"], "  ")]
            case "assistant":
                made += ["", page.paint("model", "bold"), *_said(message, view, page)]
                for number, call in enumerate(message.get("calls", []), place + 1):
                    made.append(f"  {cut(_call(call), page.room(2))}")
                    if number < len(said) and said[number]["role"] == "tool":  # results stand directly behind their turn, in call order
                        made.append(_result(said[number], page))
            case _:
                pass  # a result, shown beside its call
    return made


def _this_turn(view: dict[str, Any], page: Page) -> list[str]:
    """The calls of the open turn, each with where it is: what one looks for in a run that hangs."""
    made: list[str] = ["", page.paint("this turn", "bold")] if view["calls"] else []
    for call in view["calls"]:
        again = f", attempt {call['attempt']}" if call["attempt"] > 1 else ""
        made += [f"  {cut(_call(call), page.room(2))}", f"    {page.paint(call['phase'] + again, 'dim')}"]
    return made


def _said(message: dict[str, Any], view: dict[str, Any], page: Page) -> list[str]:
    if not message["text"].strip():
        return []
    return ["  (the answer, below)"] if message is view["messages"][-1] and message["text"] == view["answer"] else page.paragraphs(message["text"], "  ")


def _call(call: dict[str, Any]) -> str:
    return f"{one_line(call['name'], 64)} {short(call['arguments'], RESULT)}".strip()


def _result(message: dict[str, Any], page: Page) -> str:
    good, content = message["kind"] == "success", message["content"]
    text = short(content if good or not isinstance(content, dict) else content.get("message", content), RESULT)
    word = "ok" if good else message["kind"]
    return f"    {page.paint(word, 'green' if good else 'red')}  {cut(text, page.room(6 + len(word)))}"


def _pending(view: dict[str, Any], page: Page, to_type: Mapping[str, list[str]]) -> list[str]:
    made: list[str] = []
    for asked in view["pending"]:
        if asked["kind"] == "question":
            made += page.paragraphs(f"{asked['call_id']}  {asked['reason']}", "  ")
        else:
            made += page.paragraphs(f"{asked['call_id']}  {asked['kind']}: {asked['name']} {short(asked['arguments'], 200)}", "  ")
        made += [page.paint(f"      {line}", "cyan") for line in to_type.get(asked["call_id"], [])]
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


def prompt_lines(request: Request, page: Page) -> list[str]:
    """A request in full, as the model is given it."""
    made = [
        page.paint(f"request {request.number}, turn {request.turn}", "bold"),
        "",
        page.paint("instructions", "dim"),
        *page.paragraphs(request.instructions, "  "),
    ]
    made += ["", page.paint("tools", "dim"), *(f"  {tool.name}: {one_line(tool.description, page.room(4 + len(tool.name)))}" for tool in request.tools)]
    for message in request.messages:
        made += ["", page.paint(f"{message.role} {message.name or message.kind} {message.call_id}".strip(), "dim")]
        if message.text:
            made += page.paragraphs(message.text, "  ")
        made += [f"  {one_line(call.name)} {one_line(call.arguments_text)}" for call in message.calls]
        if message.role == "tool":
            made += page.paragraphs(message.content if isinstance(message.content, str) else compact(message.content), "  ")
    return [*made, "", page.paint("notice", "dim"), *page.paragraphs(request.notice, "  ")]
