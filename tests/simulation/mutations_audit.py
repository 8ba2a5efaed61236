"""Mutations of audit trails: what is named before it goes, and what is found of a trail."""

from __future__ import annotations

from tests.simulation.mutation_list import mutations

REAL = "tests/jobs/audit/test_audit.py"
_GARBAGE = "memwal/jobs/garbage/apply/__init__.py"
_TRAIL = "memwal/run/trail.py"

AUDIT = (
    *mutations(
        _GARBAGE,
        f"{REAL} -k 'each_intent or expires or middle'",
        (
            "audit: versions expire before they are named",
            "            self._intend_expiry(seen)\n",
            "",
        ),
        (
            "audit: what is dropped is not named before",
            "                self._intend(self.seen.plan)\n                self.acted = True",
            "                self.acted = True",
        ),
        (
            "audit: entries of the WAL are not named before",
            "            self._intend(plan)\n        except MemWalError",
            "            pass\n        except MemWalError",
        ),
        (
            "audit: a trail that can't be written in the middle stops nothing",
            "            self.unwritten = error\n            return ()\n",
            "            self.unwritten = error\n",
        ),
    ),
    *mutations(
        _TRAIL,
        f"{REAL} -k 'stops or says_so or no_texts or outlives or idle'",
        (
            "audit: a trail that can't be written stops nothing",
            "            raise StoreUnavailable(\n"
            '                f"the audit trail can\'t be written, so nothing of this was deleted: {error}"\n'
            "            ) from error\n",
            "            del error\n",
        ),
        (
            "audit: an outcome closes no intent",
            '            "intents": tuple(self._intents),',
            '            "intents": (),',
        ),
        (
            "audit: a run that failed leaves its intents open",
            "        if not items and not self._intents:\n",
            "        if not items:\n",
        ),
        (
            "audit: texts and keys of a request are written down",
            "found[declared.name] = value if written else",
            "found[declared.name] = value if True else",
        ),
        (
            "audit: a link to a table has a trail of its own",
            "path = str(Path(uri).resolve())",
            "path = str(Path(uri))",
        ),
    ),
    *mutations(
        "memwal/jobs/rescue/apply.py",
        f"{REAL} -k torn",
        (
            "audit: torn entries are replaced before they are named",
            "            self.intend(plan)\n",
            "            pass\n",
        ),
    ),
    *mutations(
        "memwal/jobs/checkpoint/job.py",
        f"{REAL} -k 'checkpoint or stops'",
        (
            "audit: a checkpoint is dropped before it is named",
            "        if trail is not None:\n            trail.intend(",
            "        if False:\n            trail.intend(",
        ),
    ),
    *mutations(
        "memwal/run/records.py",
        f"{REAL} -k says_so",
        (
            "audit: a failed run without a lease tells nothing",
            "if not (table.worked_on or intended) or",
            "if not table.worked_on or",
        ),
    ),
    *mutations(
        "memwal/store/records/audit.py",
        "tests/store/test_audit.py -m 'not served'",
        (
            "audit: a document replaces another one of its number",
            "self.objects.put_if_absent(layout.audit_path",
            "self.objects.put(layout.audit_path",
        ),
        (
            "audit: a lost reply makes a second document",
            "                if newest != link:  # else it is this very document, whose reply was lost\n"
            "                    continue\n",
            "                continue\n",
        ),
        (
            "audit: the digest of a document is not looked at",
            'if _read_seal(seal.removeprefix(b"{")) != digest:',
            "if False:",
        ),
        (
            "audit: a copy under another number is taken for the document",
            "if entry.number != number:",
            "if False:",
        ),
        (
            "audit: documents follow on one that is damaged",
            "        if sealed is None:\n            raise Corruption(",
            '        sealed = sealed or "0" * 64\n        if sealed is None:\n            raise Corruption(',
        ),
    ),
    *mutations(
        "memwal/jobs/audit/plan.py",
        "tests/jobs/audit/test_audit_plan.py",
        (
            "audit: a gap in the numbers is none",
            "if number > self.last + 1:",
            "if False:",
        ),
        (
            "audit: the digest of the one before is not compared",
            "previous != self.digest:",
            "False:",
        ),
        (
            "audit: run records are not compared",
            "digest is not None and known != digest:",
            "False:",
        ),
        (
            "audit: an end that was cut off is none",
            "        if beyond:\n",
            "        if False:\n",
        ),
        (
            "audit: what happened in the base is left out for a key",
            "if line.shard_id is not None and line.shard_id in wanted.other_shards:",
            "if wanted.other_shards and line.shard_id not in wanted.other_shards:",
        ),
    ),
)
