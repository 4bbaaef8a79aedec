"""The pages: each asks the server for what it shows and renders one template. They work without scripts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from puf_common.errors import NotFound, PufError
from puf_common.receipts import signed_receipt
from puf_common.receipts.signed_receipt import Receipt
from puf_common.receipts.signing_key import fingerprint
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import operator_pb2 as op
from puf_common.v1 import tickets_pb2 as tk
from puf_server.dashboard import requests as views
from puf_server.dashboard.assets import Assets
from puf_server.dashboard.events import Events, described, shown
from puf_server.dashboard.formats import FILTERS
from puf_server.dashboard.history import History, series
from puf_server.dashboard.upstream import Upstream

_CLIENTS, _ROUNDS, _MODELS, _ENTRIES, _TICKETS, _LATEST = 50, 50, 50, 100, 25, 12
_MOST_STREAMS = 64
_LONGEST_TEXT = 100
KINDS = ("train", "unlearn", "recover", "reset", "rollback")
MODEL_STATES = ("ready", "unlearned", "withdrawn", "auxiliary", "deleted")
CLIENT_STATES = ("alive", "absent", "leaving", "held", "forgotten", "readmitted")
EVENT_GROUPS = ("ticket", "client", "round", "model", "federation", "shard", "history", "backup")


class Pages:
    """The handlers of one dashboard."""

    def __init__(self, upstream: Upstream, events: Events, history: History) -> None:
        self._upstream = upstream
        self._events = events
        self._history = history
        self._streams = 0
        self._assets = Assets()
        loader = FileSystemLoader(Path(__file__).parent / "templates")
        self._environment = Environment(
            loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        self._environment.filters |= FILTERS
        self._environment.filters |= {"described": described, "verdict_tone": views.verdict_tone}
        self._environment.globals |= {"asset": self._assets.address}

    async def overview(self, request: Request) -> Response:
        after = self._events.newest
        status, rounds, latest = await asyncio.gather(
            self._status(),
            self._upstream.call("ListRounds", op.ListRoundsRequest(limit=_LATEST)),
            self._upstream.call("ListAudit", op.ListAuditRequest(limit=_LATEST)),
        )
        open_tickets = await self._tickets(views.OPEN, 5)
        now = time.time()
        return self._page(
            "overview.html",
            status,
            after,
            rounds=rounds.rounds,
            # Newer entries arrive as events, and with each the page is refreshed.
            latest=[shown(entry) for entry in latest.entries if entry.number <= after],
            requests=[views.row(t, status, now) for t in open_tickets.tickets],
            requests_open=open_tickets.total,
        )

    async def requests(self, request: Request) -> Response:
        after = self._events.newest
        status = await self._status()
        chosen, page = _choice(request, "state", [views.state_of(s) for s in views.ENDED]), _number(request, "page", 1)
        now = time.time()
        if chosen:
            (state,) = (s for s in views.ENDED if views.state_of(s) == chosen)
            parts = [await self._tickets([state], _TICKETS, (page - 1) * _TICKETS)]
        else:
            parts = list(
                await asyncio.gather(self._tickets(views.OPEN, 500), *(self._tickets([s], 5) for s in views.ENDED))
            )
        rows = [views.row(t, status, now) for part in parts for t in part.tickets]
        totals = {views.state_of(s): part.total for s, part in zip(views.ENDED, parts[1:], strict=False)}
        return self._page(
            "requests.html",
            status,
            after,
            groups=list(views.groups(rows, (*views.OPEN, *views.ENDED))),
            totals=totals,
            chosen=chosen,
            page=page,
            pages=_pages(parts[0].total, _TICKETS) if chosen else 1,
        )

    async def request(self, request: Request) -> Response:
        after = self._events.newest
        ticket_id = request.path_params["ticket"]
        status, found = await asyncio.gather(self._status(), self._ticket(ticket_id))
        receipt = await self._receipt(found) if found.state == tk.TICKET_STATE_COMPLETED else None
        return self._page(
            "request.html",
            status,
            after,
            row=views.row(found, status, time.time()),
            stages=views.stages(found),
            states=[(s.state, views.state_of(s.state), s.at, s.note) for s in found.history],
            receipt=receipt.content if receipt else None,
            key=fingerprint(status.server_key),
        )

    async def receipt(self, request: Request) -> Response:
        """The receipt file, byte for byte as the server signed it."""
        ticket_id = request.path_params["ticket"]
        reply = await self._upstream.call("IssueReceipt", op.IssueReceiptRequest(ticket_id=ticket_id))
        name = "".join(c for c in ticket_id if c.isalnum() or c in "-_")[:80]
        headers = {"content-disposition": f'attachment; filename="receipt-{name}.json"'}
        return Response(reply.receipt, media_type="application/json", headers=headers)

    async def clients(self, request: Request) -> Response:
        after = self._events.newest
        text, state, page = _text(request, "q"), _choice(request, "state", CLIENT_STATES), _number(request, "page", 1)
        asked = op.ListClientsRequest(limit=_CLIENTS, offset=(page - 1) * _CLIENTS, name=text, status=state)
        status, found = await asyncio.gather(self._status(), self._upstream.call("ListClients", asked))
        return self._page(
            "clients.html",
            status,
            after,
            clients=found.clients,
            total=found.total,
            text=text,
            state=state,
            states=CLIENT_STATES,
            page=page,
            pages=_pages(found.total, _CLIENTS),
        )

    async def rounds(self, request: Request) -> Response:
        after = self._events.newest
        kind, before = _choice(request, "kind", KINDS), _number(request, "before", 0)
        asked = op.ListRoundsRequest(limit=_ROUNDS, before=before, kind=kind)
        status, found = await asyncio.gather(self._status(), self._upstream.call("ListRounds", asked))
        full = len(found.rounds) == _ROUNDS
        return self._page(
            "rounds.html",
            status,
            after,
            rounds=found.rounds,
            kind=kind,
            kinds=KINDS,
            before=before,
            older=found.rounds[-1].number if full and found.rounds[-1].number > 1 else 0,
        )

    async def models(self, request: Request) -> Response:
        after = self._events.newest
        state, page = _choice(request, "state", MODEL_STATES), _number(request, "page", 1)
        asked = op.ListModelsRequest(limit=_MODELS, offset=(page - 1) * _MODELS, status=state)
        status, found = await asyncio.gather(self._status(), self._upstream.call("ListModels", asked))
        return self._page(
            "models.html",
            status,
            after,
            models=found.models,
            total=found.total,
            state=state,
            states=MODEL_STATES,
            exports=self._events.exports,
            page=page,
            pages=_pages(found.total, _MODELS),
        )

    async def audit(self, request: Request) -> Response:
        after = self._events.newest
        group, text = _choice(request, "event", EVENT_GROUPS), _text(request, "q")
        before, number = _number(request, "before", 0), _number(request, "round", 0)
        event = f"{group}." if group else ""
        asked = op.ListAuditRequest(limit=_ENTRIES, before=before, event=event, text=text, round=number)
        status, found = await asyncio.gather(self._status(), self._upstream.call("ListAudit", asked))
        entries: Sequence[op.AuditEntry] = found.entries
        return self._page(
            "audit.html",
            status,
            after,
            entries=entries,
            group=group,
            groups=EVENT_GROUPS,
            text=text,
            round=number,
            before=before,
            older=entries[-1].number if len(entries) == _ENTRIES and entries[-1].number > 1 else 0,
            chain=self._events.chain,
            newest=self._events.newest,
        )

    async def charts(self, request: Request) -> Response:
        return Response(json.dumps(series(await self._history.points())), media_type="application/json")

    async def events(self, request: Request) -> Response:
        """Server-sent events after the id that the browser got last, or after the one that the page states."""
        if self._streams >= _MOST_STREAMS:
            return Response(status_code=503, headers={"retry-after": "10"})
        stated = request.headers.get("last-event-id", request.query_params.get("after", ""))
        after = int(stated) if stated.isascii() and stated.isdecimal() and len(stated) < 18 else self._events.newest

        async def counted() -> Any:
            self._streams += 1
            try:
                async for text in self._events.stream(after):
                    yield text
            finally:
                self._streams -= 1

        return StreamingResponse(counted(), media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    async def asset(self, request: Request) -> Response:
        found = self._assets.find(request.path_params["name"])
        if found is None:
            raise NotFound("no such file")
        headers = {"cache-control": "public, max-age=31536000, immutable"}
        return Response(found.content, media_type=found.media_type, headers=headers)

    def problem(self, title: str, sentence: str, code: int, **headers: str) -> Response:
        """A page that says what is wrong."""
        text = self._environment.get_template("problem.html").render(
            title=title, sentence=sentence, active="", status=None, after=self._events.newest
        )
        return HTMLResponse(text, code, headers=headers)

    async def _status(self) -> op.StatusReply:
        reply: op.StatusReply = await self._upstream.call("Status", op.StatusRequest())
        return reply

    async def _tickets(self, states: Sequence[tk.TicketState], limit: int, offset: int = 0) -> Any:
        return await self._upstream.call(
            "ListTickets", op.ListTicketsRequest(states=states, limit=limit, offset=offset)
        )

    async def _ticket(self, ticket_id: str) -> tk.Ticket:
        reply = await self._upstream.call("ListTickets", op.ListTicketsRequest(ticket_id=ticket_id[:_LONGEST_TEXT]))
        if not reply.tickets:
            raise NotFound(f"no request {ticket_id[:_LONGEST_TEXT]}")
        found: tk.Ticket = reply.tickets[0]
        return found

    async def _receipt(self, ticket: tk.Ticket) -> Receipt | None:
        """What the receipt says; None if this version cannot read it."""
        reply = await self._upstream.call("IssueReceipt", op.IssueReceiptRequest(ticket_id=ticket.id))
        try:
            return signed_receipt.read(reply.receipt)
        except PufError:
            return None

    def _page(self, template: str, status: op.StatusReply, after: int, **facts: Any) -> Response:
        phase = fed.Phase.Name(status.position.phase).removeprefix("PHASE_").lower()
        text = self._environment.get_template(template).render(
            status=status, phase=phase, after=after, now=time.time(), problem=self._events.problem, **facts
        )
        return HTMLResponse(text)


def _number(request: Request, name: str, least: int) -> int:
    """A whole number of the query; `least` where there is none."""
    text = request.query_params.get(name, "")
    return max(least, int(text)) if text.isascii() and text.isdecimal() and len(text) < 10 else least


def _text(request: Request, name: str) -> str:
    return request.query_params.get(name, "").strip()[:_LONGEST_TEXT]


def _choice(request: Request, name: str, known: Sequence[str]) -> str:
    text = request.query_params.get(name, "")
    return text if text in known else ""


def _pages(total: int, size: int) -> int:
    return max(1, -(-total // size))
