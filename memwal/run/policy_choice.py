"""Compares the configuration's row-merge policy and expiry with what the table stores."""

from __future__ import annotations

from memwal.config import ResolvedTable
from memwal.errors import Refused
from memwal.model import TableView
from memwal.rows.expire import EXPIRE_KEY
from memwal.rows.policy import STORED_KEY, RowPolicy, is_stored
from memwal.run.options import RunOptions
from memwal.run.tables import OpenTable
from memwal.store.tables.policy_rows import check_fits


def check_policies(resolved: ResolvedTable, stored: str | None) -> None:
    """Raise Refused when the configuration and the table have policies that differ."""
    wanted = resolved.policy
    if wanted is not None and stored is not None and not is_stored(wanted, stored):
        raise Refused(
            "MW-P08",
            f"{resolved.name}: the configuration's row-merge policy is {wanted.as_text()}, and the "
            f"table's is {stored}: rows were merged by it. Mend the configuration. To change the "
            "policy, merge what is pending, stop the writers, and remove the key "
            f"{STORED_KEY!r} from the table's config with pylance",
        )


def check_stored(resolved: ResolvedTable, stored: str | None) -> None:
    """Raise Refused as `check_policies` does, and when a configured policy is not stored yet.

    For readers, which can't store it.
    """
    check_policies(resolved, stored)
    if resolved.policy is not None and stored is None:
        raise Refused(
            "MW-P09",
            f"{resolved.name}: the configuration has a row-merge policy, which the table does not "
            "have yet: rows would be read without it. `memwal merge` stores it first of all",
        )


def choose_policy(table: OpenTable) -> RowPolicy | None:
    """The policy to store in the table; None when it has one already, or none is configured.

    Raises Refused for a mismatch and for a policy that does not fit the table, and Unsupported.
    """
    view, stores = table.view, table.stores
    if view is None or stores is None:
        return None
    check_policies(table.resolved, view.policy_text)
    policy = table.resolved.policy
    if policy is None or view.policy_text is not None:
        return None
    check_fits(policy, view, stores.tables.at(view.version).schema)
    return policy


def store_policy(table: OpenTable, policy: RowPolicy, options: RunOptions) -> None:
    """Store the policy in the table. Raises Refused with `--no-lease`, LeaseHeld, LostRace."""
    if not options.lease or table.stores is None:
        raise Refused(
            "MW-L01",
            f"{table.resolved.name}: its row-merge policy is not stored yet, which needs the "
            "lease: a merge that is under way would still merge by no policy. Run once without "
            "--no-lease",
        )
    table.take_lease("merge", options)
    table.before_commit()
    stored = table.stores.tables.put_policy(policy.as_text())
    check_policies(table.resolved, stored)


def settle_policy(table: OpenTable, options: RunOptions) -> bool:
    """Store the configured policy before a writer's first rows; returns whether it did.

    Otherwise a merge without this configuration would take operands for values. The lease is given
    back, so that merges can run beside the writer. Raises Refused for a mismatch, and what
    `store_policy` raises.
    """
    policy = choose_policy(table)
    if policy is None or options.dry_run:
        return False
    store_policy(table, policy, options)
    table.release_lease()
    return True


def list_policy_warnings(resolved: ResolvedTable, view: TableView) -> list[str]:
    """Warnings of what a merge or a read would refuse because of the configured policy."""
    try:
        check_stored(resolved, view.policy_text)
    except Refused as error:
        return [str(error)]
    return []


def list_expire_warnings(resolved: ResolvedTable, view: TableView) -> list[str]:
    """A warning that rows do not expire as the configuration has it, which `init` alone stores."""
    wanted, stored = resolved.expire, view.manifest.config.get(EXPIRE_KEY)
    if wanted is None or stored == wanted.as_text():
        return []
    return [
        f"{resolved.name}: by the configuration rows expire by {wanted.as_text()}, by the table "
        f"by {stored or 'nothing'}: `memwal init {resolved.name}` stores what the configuration has"
    ]
