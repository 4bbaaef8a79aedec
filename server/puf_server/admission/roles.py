"""What the callers of the operator port may do: an operator everything, a viewer only calls that change nothing."""

from __future__ import annotations

from puf_common.errors import NotYours
from puf_common.network.certificates import Role
from puf_common.network.status import ROLE_KEY
from puf_server.admission.identity import Context, holder_in, metadata

VIEWER: Role = "viewer"
# Every other method of the port, also one that is added later, is for operators only.
READS = frozenset(
    f"/puf.v1.Operator/{name}"
    for name in (
        "Status", "ListClients", "ListRounds", "ListTickets", "ListModels", "ListAudit", "FollowAudit", "IssueReceipt",
    )
)  # fmt: skip


def certified_role(context: Context) -> Role:
    """With TLS: the role in the caller's certificate, or viewer if the caller asks to be one."""
    return VIEWER if _asks_to_view(context) else holder_in(context).role


def claimed_role(context: Context) -> Role:
    """Without TLS: operator, or viewer if the caller asks to be one."""
    return VIEWER if _asks_to_view(context) else "operator"


def require_allowed(method: str, role: Role) -> None:
    """Raises NotYours if this role may not call the method."""
    if role == VIEWER and method not in READS:
        name = method.rpartition("/")[2]
        raise NotYours(f"a viewer cannot call {name}: it only reads; use an operator's certificate", role=role)


def _asks_to_view(context: Context) -> bool:
    return VIEWER in metadata(context, ROLE_KEY)
